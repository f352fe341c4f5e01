"""A live arm as a `VecEnv`: the contract on arms of this process, faults, and the evaluator on top."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import EvalReport, evaluate
from embodied_rl.policy import PolicyTraits
from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.runtime import ArmRuntime
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.env.arm import ArmBlockedError, ArmFailedError, ArmStep, ArmStoppedError, ArmView, HumanStep
from embodied_rl.real_robot.env.vec_env import LiveVecEnv
from embodied_rl.rng import philox
from embodied_rl.rollout.recording import RecordingVecEnv
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
        take_in: Control steps of the policy until a person takes over; None: never.
        hand: What the person does then, one joint-wise action a control step; the person lets go after the last.
        ended: Whether the person disarms the arm after that.
        labels: What its record was told of each episode.
        glances: How often it was looked at in the middle of a chunk.
    """

    def __init__(self) -> None:
        self.runtime = ArmRuntime(ROBOT, ())
        self.now, self.joints, self.target = 0, ROBOT.home.copy(), ROBOT.home.copy()
        self.break_in: int | None = None
        self.take_in: int | None = None
        self.hand: list[Array] = []
        self.ended, self.closed = False, False
        self.labels: list[bool | None] = []
        self.glances = 0

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

    def glance(self) -> ArmView:
        self.glances += 1
        return self.see()

    def act(self, action: Array) -> ArmStep | None:
        if self.take_in is not None:
            self.take_in -= 1
            if self.take_in < 0:
                self.take_in = None
                taken = self.runtime.mux.human(Command(self.now, NAMES, self.target), self.now, engaged=True)
                assert taken is not None
                assert taken.accepted
                return None
        return self._step(action, ArmState.RUNNING)

    def follow(self) -> ArmStep | None:
        if not self.hand:
            assert self.runtime.mux.release(self.now).accepted
            return None
        return self._step(self.hand.pop(0), ArmState.HUMAN)

    def resume(self) -> bool:
        while self.ended and not self.runtime.fire(Event.DISARM, self.now).accepted:
            self._tick(None)
        return not self.ended and self.runtime.fire(Event.RESUME, self.now).accepted

    def _step(self, action: Array, state: ArmState) -> ArmStep:
        if self.break_in is not None:
            self.break_in -= 1
            if self.break_in < 0:
                self.runtime.machine.button(True, self.now)
        self.target = self.target + 0.02 * action
        for _ in range(TICKS_PER_STEP):
            self._tick(self.target, by_hand=state is ArmState.HUMAN)
        if self.runtime.machine.state is not state:
            stopped = self.runtime.machine.state is ArmState.ESTOPPED
            raise (ArmStoppedError if stopped else ArmFailedError)(f"the arm is {self.runtime.machine.state}")
        return ArmStep(action, bool(self.joints[0] > ROBOT.home[0] + GOAL))

    def judge(self) -> bool:
        return bool(self.joints[1] > ROBOT.home[1] + GOAL)

    def end(self, success: bool | None) -> None:
        self.labels.append(success)

    def close(self) -> None:
        self.closed = True

    def _tick(self, target: Array | None, *, by_hand: bool = False) -> None:
        self.now += TICK
        self.runtime.joint_states(NAMES, self.joints.tolist(), self.now)
        self.runtime.watchdog.heartbeat(self.now)
        command = None if target is None else Command(self.now, NAMES, target)
        if by_hand and command is not None:
            self.runtime.mux.human(command, self.now, engaged=True)
        tick = self.runtime.tick(self.now, command)
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


@pytest.fixture
def handing_back(arm: CoreArm) -> Iterator[LiveVecEnv]:
    with closing(LiveVecEnv([arm], INFO, hand_back=True)) as made:
        yield made


def by_hand(steps: int, joint: int = 0) -> list[Array]:
    return list(0.5 * push(steps, joint)[0].numpy())


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
    assert result.lost.all(), "nothing is wrong with the episode"
    assert not (result.terminated | result.truncated | result.success).any()
    assert arm.labels == [None]
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
    assert arm.labels == [True], "its record says so too"


def test_an_arm_that_fails_by_itself_is_no_arm_that_was_stopped(env: LiveVecEnv, arm: CoreArm) -> None:
    def fail(action: Array) -> ArmStep | None:
        raise ArmFailedError("a camera is silent")

    env.reset([0], [SPEC])
    arm.act = fail  # type: ignore[method-assign]
    result = env.step([0], push(4))
    assert result.failed.all()
    assert not result.lost.any(), "an arm that fails again and again is given up"


def test_an_arm_that_was_stopped_before_it_began_breaks_nothing(env: LiveVecEnv, arm: CoreArm) -> None:
    def stopped(episode: EpisodeSpec) -> str:
        raise ArmStoppedError("the scene is not set up")

    arm.begin = stopped  # type: ignore[method-assign]
    env.reset([0], [SPEC])
    assert env.observe([0], env.new_observation(1)) == [0]
    assert env.step([0], push(4)).lost.all(), "it is run again, and not counted"


@pytest.mark.parametrize("steps", [0, 2])
def test_a_policy_that_pushes_the_arm_against_something_has_failed(env: LiveVecEnv, arm: CoreArm, steps: int) -> None:
    """The episode counts; but where nothing of it is there it is run again."""
    act, left = arm.act, [steps]

    def blocked(action: Array) -> ArmStep | None:
        if not left[0]:
            raise ArmBlockedError("the arm is holding: tracking: 0.3 rad off")
        left[0] -= 1
        return act(action)

    arm.act = blocked  # type: ignore[method-assign]
    recorded = RecordingVecEnv(env)
    recorded.reset([0], [SPEC])
    recorded.observe([0], env.new_observation(1))
    result = recorded.step([0], push(4))
    assert bool(result.failed) is (steps == 0)
    assert bool(result.terminated) is (steps == 2)
    assert not (result.success | result.lost).any()
    if steps:
        assert int(result.steps_taken) == len(recorded.take(SPEC).action) == 2
        assert arm.labels == [False]


def test_an_arm_that_does_not_come_to_rest_costs_no_episode(env: LiveVecEnv, arm: CoreArm) -> None:
    def fail(success: bool | None) -> None:
        raise ArmFailedError("disarm was refused")

    env.reset([0], [SPEC])
    arm.end = fail  # type: ignore[method-assign]
    assert env.step([0], push(HORIZON)).success.all()


def test_a_chunk_that_is_recorded_is_looked_at_as_it_goes(env: LiveVecEnv, arm: CoreArm) -> None:
    recorded = RecordingVecEnv(env)
    recorded.reset([0], [SPEC])
    recorded.observe([0], env.new_observation(1))
    recorded.step([0], push(4))
    assert arm.glances == 3, "the arm does not wait for newer pictures between the control steps of a chunk"


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


def test_a_takeover_joins_the_episode_and_ends_it_where_the_person_lets_go(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    arm.take_in, arm.hand = 1, by_hand(4, joint=1)
    mixed = env.step([0], push(4))
    assert not (mixed.failed | mixed.terminated | mixed.truncated).any()
    assert (int(mixed.steps_taken), int(mixed.human)) == (4, 3)
    assert mixed.executed is not None
    np.testing.assert_array_equal(mixed.executed[0, :, 0], [1, 0, 0, 0])
    np.testing.assert_array_equal(mixed.executed[0, :, 1], [0, 0.5, 0.5, 0.5])
    assert not env.observe([0], env.new_observation(1)), "the person's arm is seen as any other"
    last = env.step([0], push(4))
    assert (int(last.steps_taken), int(last.human)) == (1, 1)
    assert last.terminated.all()
    assert not (last.success | last.truncated | last.failed).any(), "the judge was asked, and says no"
    with pytest.raises(ValueError, match="reset it first"):
        env.step([0], push(1))
    env.reset([0], [SPEC])
    assert int(env.step([0], push(4)).human) == 0, "the next episode is the policy's"


def test_a_person_reaches_the_goal_and_nothing_is_paid(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    arm.take_in, arm.hand = 2, by_hand(30)
    results = [env.step([0], push(4))]
    while not (results[-1].terminated | results[-1].truncated).any():
        results.append(env.step([0], push(4)))
    assert results[-1].success.all()
    assert not any(result.reward.any() for result in results)


def test_a_person_is_not_cut_off_by_the_horizon(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    arm.take_in, arm.hand = 2, by_hand(HORIZON, joint=1)
    results = [env.step([0], 0 * push(HORIZON)) for _ in range(2)]
    assert not (results[0].terminated | results[0].truncated).any()
    assert sum(int(result.human) for result in results) == HORIZON
    assert results[1].terminated.all()
    assert results[1].success.all(), "the judge looks at what the person did"


def test_after_a_person_hands_back_the_policy_goes_on(handing_back: LiveVecEnv, arm: CoreArm) -> None:
    env = handing_back
    env.reset([0], [SPEC])
    arm.take_in, arm.hand = 1, by_hand(2)
    first = env.step([0], push(4))
    assert (int(first.steps_taken), int(first.human)) == (3, 2), "what is left of the chunk was decided before"
    assert not (first.failed | first.terminated | first.truncated).any()
    rest = env.step([0], push(HORIZON))
    assert int(rest.human) == 0
    assert rest.executed is None
    assert rest.success.all()
    assert not rest.reward.any(), "what a person helped to reach is not paid"


def test_stepped_one_by_one_a_hand_back_ends_the_chunk_too(handing_back: LiveVecEnv, arm: CoreArm) -> None:
    env = RecordingVecEnv(handing_back)
    env.reset([0], [SPEC])
    arm.take_in, arm.hand = 1, by_hand(2)
    obs = env.new_observation(1)
    env.observe([0], obs)
    first = env.step([0], push(4))
    assert (int(first.steps_taken), int(first.human)) == (3, 2)
    while not (first.terminated | first.truncated).any():
        env.observe([0], obs)
        first = env.step([0], push(4))
    episode = env.take(SPEC)
    assert episode.human == [False, True, True, *[False] * (len(episode.action) - 3)]
    assert [action[0] for action in episode.action[:4]] == [1.0, 0.5, 0.5, 1.0]
    assert len(episode.images) == len(episode.action)
    assert episode.success
    assert episode.decision[:4] == [0, 0, 0, 1]


def test_a_person_may_end_the_episode_where_a_policy_would_go_on(handing_back: LiveVecEnv, arm: CoreArm) -> None:
    handing_back.reset([0], [SPEC])
    arm.take_in, arm.hand, arm.ended = 0, by_hand(2), True
    result = handing_back.step([0], push(2))
    assert int(result.human) == int(result.steps_taken) == 2
    ended = handing_back.step([0], push(4))
    assert ended.terminated.all()
    assert int(ended.steps_taken) == 0


def test_a_touch_without_a_control_step_is_no_help(env: LiveVecEnv, arm: CoreArm) -> None:
    env.reset([0], [SPEC])
    arm.take_in = 2
    assert int(env.step([0], push(4)).steps_taken) == 2
    result = env.step([0], push(HORIZON))
    assert result.success.all()
    assert result.reward.any()


@pytest.mark.parametrize("steps", [1, 3])
def test_an_emergency_stop_in_a_persons_hand_loses_the_episode(env: LiveVecEnv, arm: CoreArm, steps: int) -> None:
    env.reset([0], [SPEC])
    arm.take_in, arm.hand, arm.break_in = 1, by_hand(20), steps
    result = env.step([0], push(4))
    assert result.failed.all()
    assert not (result.terminated | result.truncated | result.success).any()
    assert int(result.human) == 0
    assert env.observe([0], env.new_observation(1)) == [0]


def test_an_episode_with_help_is_no_success_of_the_policy(env: LiveVecEnv, arm: CoreArm) -> None:
    arm.take_in, arm.hand = 3, by_hand(30)
    specs = [EpisodeSpec(i, "bench/push", i, 40 + i) for i in range(3)]
    report = evaluate(env, Pushes(), specs, "greedy")  # type: ignore[arg-type]
    helped, *alone = report.results
    assert (helped.success, helped.helped_success) == (False, True)
    assert 0 < helped.human_steps == helped.num_steps - 3
    assert all(result.success and not result.human_steps for result in alone)
    assert report.overall.successes == 2
    metrics = report.metrics()
    assert metrics["eval/success"] == pytest.approx(2 / 3)
    assert metrics["eval/success_with_help"] == 1
    assert metrics["eval/helped"] == pytest.approx(1 / 3)
    assert EvalReport.from_json(report.to_json()) == report
