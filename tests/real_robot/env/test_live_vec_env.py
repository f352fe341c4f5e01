"""A live arm as a `VecEnv`: the contract on arms of this process, faults, and the evaluator on top."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.policy import PolicyTraits
from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.runtime import ArmRuntime
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.env.arm import ArmFailedError, ArmView, HumanStep
from embodied_rl.real_robot.env.vec_env import LiveVecEnv
from embodied_rl.rng import philox
from embodied_rl.types import ActOutput, Array, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo, SimulatorFailed, VecEnv
from tests.sim.contract import SuccessContract, VecEnvContract, draw

ROBOT = load_robot("fr3")
NAMES, TICK, TICKS_PER_STEP, HORIZON, GOAL = ROBOT.limits.names, 10_000_000, 5, 12, 0.12
INFO = EnvInfo(
    backend="live", suite="bench", simulator="core", renderer="drawn", cameras=("front", "wrist"), image_shape=(16, 16),
    proprio_dim=8, action_dim=7, action_low=(-1.0,) * 7, action_high=(1.0,) * 7, control_hz=20.0,
    max_episode_steps=HORIZON,
)  # fmt: skip


class CoreArm:
    """The core's runtime on an arm that follows at once; actions move joints, and the first one has a goal.

    Attributes:
        break_in: Control steps until the emergency stop is pressed; None: never.
    """

    def __init__(self) -> None:
        self.runtime = ArmRuntime(ROBOT, ())
        self.now, self.joints, self.target = 0, ROBOT.home.copy(), ROBOT.home.copy()
        self.break_in: int | None = None
        self.closed = False

    def begin(self, episode: EpisodeSpec) -> str:
        self.runtime = ArmRuntime(ROBOT, ())  # a script drives it home
        start = philox(episode.seed, episode.init_state).uniform(-0.02, 0.02, 7)
        self.now, self.joints = 0, ROBOT.home + start
        self.target = self.joints.copy()
        self._tick(None)
        for event in (Event.ARM, Event.START):
            if not self.runtime.fire(event, self.now).accepted:
                raise ArmFailedError(f"{event} was refused")
        return f"do {episode.task}"

    def see(self) -> ArmView:
        shade = np.clip(128 + 400 * (self.joints[:2] - ROBOT.home[:2]), 1, 255).astype(np.uint8)
        images = np.broadcast_to(shade[:, None, None, None], (2, 16, 16, 3)).copy()
        return ArmView(images, np.append(self.joints - ROBOT.home, self.now / 1e9).astype(np.float32))

    def act(self, action: Array) -> bool:
        if self.break_in is not None:
            self.break_in -= 1
            if self.break_in < 0:
                self.runtime.machine.button(True, self.now)
        self.target = self.target + 0.02 * action
        for _ in range(TICKS_PER_STEP):
            self._tick(self.target)
        if self.runtime.machine.state is not ArmState.RUNNING:
            raise ArmFailedError(f"the arm is {self.runtime.machine.state}")
        return bool(self.joints[0] > ROBOT.home[0] + GOAL)

    def judge(self) -> bool:
        return bool(self.joints[1] > ROBOT.home[1] + GOAL)

    def close(self) -> None:
        self.closed = True

    def _tick(self, target: Array | None) -> None:
        self.now += TICK
        self.runtime.joint_states(NAMES, self.joints.tolist(), self.now)
        self.runtime.watchdog.heartbeat(self.now)
        tick = self.runtime.tick(self.now, None if target is None else Command(self.now, NAMES, target))
        if tick.setpoint is not None:
            self.joints = tick.setpoint.positions


def push(steps: int, joint: int = 0) -> torch.Tensor:
    actions = torch.zeros(1, steps, 7)
    actions[..., joint] = 1.0
    return actions


class TestLiveVecEnv(VecEnvContract, SuccessContract):
    tasks = ("bench/push", "bench/pull")
    success = (EpisodeSpec(0, "bench/push", 1, 5), push(HORIZON))

    def make(self, num_envs: int) -> VecEnv:
        return LiveVecEnv([CoreArm() for _ in range(num_envs)], INFO)


@pytest.fixture
def arm() -> CoreArm:
    return CoreArm()


@pytest.fixture
def env(arm: CoreArm) -> Iterator[LiveVecEnv]:
    with closing(LiveVecEnv([arm], INFO)) as made:
        yield made
    assert arm.closed


SPEC = EpisodeSpec(3, "bench/push", 0, 7)


def test_what_goes_to_the_arm_keeps_the_limits(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    before = arm.joints
    env.step([0], draw(INFO, 1, HORIZON, seed=2))
    limits = ROBOT.limits
    assert (np.abs(arm.joints - before) <= limits.velocity * HORIZON / 20).all()
    assert (arm.joints >= limits.lower).all()
    assert (arm.joints <= limits.upper).all()


def test_an_emergency_stop_loses_the_episode_and_the_next_reset_begins_another(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    arm.break_in = 2
    result = env.step([0], push(4))
    assert result.failed.all()
    assert not (result.terminated | result.truncated | result.success).any()
    assert env.observe([0], env.new_observation(1)) == [0]
    with pytest.raises(ValueError, match="reset it first"):
        env.step([0], push(1))
    arm.break_in = None
    env.reset([0], [SPEC])
    assert not env.step([0], push(1)).failed.any()


def test_an_arm_that_shows_something_else_is_not_taken(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    for bad in (ArmView(np.zeros((1, 16, 16, 3), np.uint8), np.zeros(8, np.float32)),
                ArmView(np.zeros((2, 16, 16, 3), np.uint8), np.full(8, np.nan, np.float32))):  # fmt: skip
        arm.see = lambda bad=bad: bad  # type: ignore[method-assign]
        with pytest.raises(SimulatorFailed):
            env.frame(0, "front", 8)
        assert env.observe([0], env.new_observation(1)) == [0]
    assert env.step([0], push(1)).failed.all()


def test_the_judge_has_the_last_word_at_the_horizon(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    result = env.step([0], push(HORIZON, joint=1))
    assert result.terminated.all()
    assert result.success.all()
    assert result.reward[0, HORIZON - 1] == 1


def test_a_human_resets_skips_and_judges() -> None:
    answers = iter(["", "skip", "what", "Y", "no"])
    shown: list[str] = []
    human = HumanStep({"bench/push": "push it"}, ask=lambda line: (shown.append(line), next(answers))[1])
    assert human.reset(SPEC) == "push it"
    assert "Set up state 0" in shown[0]
    with pytest.raises(ArmFailedError, match="skipped"):
        human.reset(SPEC)
    assert human.judge()
    assert not human.judge()
    with pytest.raises(UserError, match="no instruction"):
        human.reset(EpisodeSpec(0, "other", 0, 0))


def test_a_skipped_reset_fails_the_episode(env: LiveVecEnv, arm: CoreArm, monkeypatch: pytest.MonkeyPatch) -> None:
    human = HumanStep({"bench/push": "push it"}, ask=lambda line: "skip")
    monkeypatch.setattr(arm, "begin", human.reset)
    env.reset([0], [SPEC])
    assert env.observe([0], env.new_observation(1)) == [0]
    assert env.step([0], push(1)).failed.all()


class Pushes:
    """A policy that pushes the first joint, where its state lies below the goal of half of the episodes."""

    chunk_len, action_dim, terms_per_step, with_value, traits = 4, 7, 7, False, PolicyTraits()

    def act(self, obs: Observation, rng: object, mode: str) -> ActOutput:
        actions = push(4).repeat(len(obs.proprio), 1, 1)
        actions *= torch.tensor([[[float(words.endswith("push"))]] for words in obs.instruction])
        return ActOutput(actions, torch.zeros(len(actions), 28), None, {})


def test_the_evaluator_runs_on_it(env: LiveVecEnv) -> None:
    specs = [EpisodeSpec(i, ("bench/push", "bench/pull")[i % 2], i, 40 + i) for i in range(6)]
    report = evaluate(env, Pushes(), specs, "greedy")  # type: ignore[arg-type]
    assert report.overall.rate == 0.5
