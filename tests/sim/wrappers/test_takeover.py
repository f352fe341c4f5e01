"""An expert in a person's place: the contract, when it takes over, what is reported, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.rollout.recording import RecordingVecEnv
from embodied_rl.sim.wrappers.takeover import Expert, ExpertTakeover, TakeoverRule, Watcher
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import SuccessContract, VecEnvContract, draw, run, same_observations, same_results
from tests.sim.test_contract import TOY_SUCCESS, Reset
from tests.toy_world import HORIZON, TASKS

STILL = torch.zeros(1, 4, 2)


class WatchesX:
    """Sees where the point is; raises an alarm where it is right of `limit` at a decision. seen: all that it saw."""

    chunk_len = 2

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.seen: list[float] = []

    def see(self, shown: Observation) -> float:
        assert len(shown.instruction) == 1, "one observation at a time"
        self.seen.append(float(shown.proprio[0, 0]))
        return self.seen[-1]

    def alarm(self, sights: Sequence[float], instruction: str) -> bool:
        assert "corner" in instruction
        return sights[-1] > self.limit


def helped(num_envs: int, rule: TakeoverRule, watcher: Watcher | None = None) -> ExpertTakeover:
    """The toy, and an expert that goes straight for the goal."""
    env = Reset(num_envs)

    def expert(env_id: int, spec: EpisodeSpec) -> Expert:
        return lambda: 4 * (env._goal[env_id] - env._position[env_id])

    return ExpertTakeover(env, rule, expert, watcher)


class TestLate(VecEnvContract):
    tasks = tuple(TASKS)

    def make(self, num_envs: int) -> VecEnv:
        return helped(num_envs, TakeoverRule("late", after=3))


class TestShare(VecEnvContract):
    tasks = tuple(TASKS)

    def make(self, num_envs: int) -> VecEnv:
        return helped(num_envs, TakeoverRule("share", after=3, share=0.5))


class TestDetector(VecEnvContract):
    tasks = tuple(TASKS)

    def make(self, num_envs: int) -> VecEnv:
        return helped(num_envs, TakeoverRule("detector"), WatchesX(0.3))


class TestNobody(VecEnvContract, SuccessContract):
    tasks = tuple(TASKS)
    success = TOY_SUCCESS

    def make(self, num_envs: int) -> VecEnv:
        return helped(num_envs, TakeoverRule("share", share=0.0))


@pytest.fixture
def late() -> Iterator[ExpertTakeover]:
    with closing(helped(2, TakeoverRule("late", after=3))) as env:
        yield env


def spec(number: int) -> EpisodeSpec:
    return EpisodeSpec(number, "toy/reach", number, 100 + number)


def test_the_expert_takes_over_within_a_chunk_and_finishes(late: ExpertTakeover) -> None:
    late.reset([0, 1], [spec(0), spec(1)])
    first = late.step([0, 1], STILL[:, :3].repeat(2, 1, 1))
    assert not first.human.any()
    assert first.executed is None
    late.reset([1], [spec(2)])
    result = late.step([0, 1], 0.5 * torch.ones(2, 4, 2))
    assert result.human.tolist() == [3, 1], "one was there from the chunk's first step, the other from its last"
    assert result.steps_taken.tolist() == [3, 4]
    assert result.terminated.tolist() == result.success.tolist() == [True, False]
    assert not result.reward.any(), "what the expert reached is not paid"
    assert result.executed is not None
    np.testing.assert_array_equal(result.executed[1, :3], 0.5 * torch.ones(3, 2))
    assert (result.executed.abs() <= 1).all()
    assert result.executed[1, 3].abs().max() == 1
    assert not result.executed[0, 3].any(), "that step did not run"


def test_no_expert_comes_after_the_goal_was_reached() -> None:
    class RunsOn(Reset):
        """Goes on after success, as under a protocol that runs to the horizon."""

        def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
            held = [self._spec[env_id] for env_id in env_ids]
            result = super().step(env_ids, actions)
            result.terminated[:] = False
            for env_id, before, over in zip(env_ids, held, result.truncated, strict=True):
                self._spec[env_id] = None if over else before
            return result

    def never(env_id: int, spec: EpisodeSpec) -> Expert:
        raise AssertionError("the goal was reached")

    env = ExpertTakeover(RunsOn(1), TakeoverRule("late", after=5), never)
    env.reset([0], [TOY_SUCCESS[0]])
    assert env.step([0], TOY_SUCCESS[1]).success.all()
    assert not env.step([0], STILL[:, :2]).human.any()


def test_who_is_taken_over_follows_from_the_seed_alone() -> None:
    rule = TakeoverRule("share", after=20, share=0.3)
    steps = [rule.first_step(EpisodeSpec(0, "toy/reach", 0, seed)) for seed in range(400)]
    again = [rule.first_step(EpisodeSpec(7, "toy/touch", 3, seed)) for seed in range(400)]
    assert steps == again
    taken = [step for step in steps if step is not None]
    assert 90 <= len(taken) <= 150
    assert set(taken) == set(range(20))


def test_where_nobody_is_taken_over_all_is_as_without() -> None:
    with closing(Reset(3)) as plain, closing(helped(3, TakeoverRule("share", share=0.0))) as wrapped:
        for env in (plain, wrapped):
            env.reset([0, 1, 2], [spec(i) for i in range(3)])
        for seed in range(2):
            actions = draw(plain.info, 3, 3, seed)
            one, two = run(plain, [0, 1, 2], actions), run(wrapped, [0, 1, 2], actions)
            same_results(one[0], two[0])
            same_observations(one[1], two[1])


def test_it_does_not_matter_which_env_and_beside_whom() -> None:
    def episode(env: ExpertTakeover, env_id: int, beside: int | None) -> list[Array]:
        ids, specs = [env_id], [spec(3)]
        if beside is not None:
            ids, specs = [beside, env_id], [spec(5), spec(3)]
        env.reset(ids, specs)
        done = []
        for _ in range(HORIZON // 2):
            result = env.step(ids, torch.zeros(len(ids), 2, 2))
            done.append(torch.zeros(2, 2) if result.executed is None else result.executed[-1])
            over = result.terminated | result.truncated
            if over[-1]:
                break
            ids = [one for one, ended in zip(ids, over.tolist(), strict=True) if not ended]
        return [part.numpy() for part in done]

    runs = []
    for env_id, beside in ((0, None), (1, 0), (0, 1)):
        with closing(helped(2, TakeoverRule("late", after=3))) as env:
            runs.append(episode(env, env_id, beside))
    assert len(runs[0]) > 2
    np.testing.assert_array_equal(runs[0], runs[1])
    np.testing.assert_array_equal(runs[0], runs[2])


RIGHT = torch.tensor([1.0, 0.0]).expand(1, 2, 2)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_the_expert_comes_at_the_alarm_and_never_before(recorded: bool, beside: bool) -> None:
    """Whoever records looks at every control step; the watcher looks where the policy decides, once."""
    watcher = WatchesX(0.6)
    takes_over = helped(2, TakeoverRule("detector"), watcher)
    env: VecEnv = RecordingVecEnv(takes_over) if recorded else takes_over
    ids = [0, 1] if beside else [1]
    env.reset(ids, [spec(3 + 2 * env_id) for env_id in ids])
    obs, positions, human = env.new_observation(2), [], []
    for _ in range(HORIZON // 2):
        env.observe(ids, obs.rows(slice(0, len(ids))))
        positions.append(float(obs.proprio[len(ids) - 1, 0]))
        result = env.step(ids, RIGHT.expand(len(ids), 2, 2))
        human.append(int(result.human[-1]))
        if (result.terminated | result.truncated).any():
            break
    first = next(number for number, x in enumerate(positions) if x > 0.6)
    assert first > 0
    assert human[:first] == [0] * first
    assert all(human[first:])
    if not beside:
        assert watcher.seen == positions[: first + 1], "it does not look on after it has raised an alarm"


def test_a_watcher_that_hears_nothing_changes_nothing() -> None:
    nobody = helped(3, TakeoverRule("detector"), WatchesX(9.0))
    with closing(Reset(3)) as plain, closing(nobody) as wrapped:
        for env in (plain, wrapped):
            env.reset([0, 1, 2], [spec(i) for i in range(3)])
        actions = draw(plain.info, 3, 3, 0)
        one, two = run(plain, [0, 1, 2], actions), run(wrapped, [0, 1, 2], actions)
        same_results(one[0], two[0])
        same_observations(one[1], two[1])


def test_a_watcher_goes_with_its_rule_alone() -> None:
    for rule, watcher in ((TakeoverRule("detector"), None), (TakeoverRule("late"), WatchesX(0.5))):
        with pytest.raises(ValueError, match="a watcher goes with rule 'detector'"):
            helped(1, rule, watcher)


@pytest.mark.parametrize("bad", [{"after": 0}, {"kind": "share", "share": 1.5}])
def test_a_rule_out_of_range_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UserError, match="got"):
        TakeoverRule(**bad)  # type: ignore[arg-type]
