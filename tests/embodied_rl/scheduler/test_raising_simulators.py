"""A simulator that raises, or dies with several envs in it, costs what one that reports `failed` does."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import run_once
from embodied_rl.evaluation.record import record_episode
from embodied_rl.rollout.isolation import IsolatedVecEnv
from embodied_rl.rollout.retries import EVALUATION_ATTEMPTS, MAX_ATTEMPTS, MAX_LOST, FailureCause, RetryPolicy
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import SimulatorFailed
from tests.embodied_rl.scheduler.toys import GRPO, PPO, Outcome, Setup, SlowEnv, assert_same_rows, pipelined, serial
from tests.toy import ACTION_DIM, CHUNK, ToyEnv, ToyPolicy

BROKEN = {("toy/reach", 3), ("toy/touch", 8)}
SETUPS = {
    name: Setup(how, groups=9, iterations=3, broken={"broken": BROKEN})
    for name, how in {"ppo": PPO, "grpo": GRPO}.items()
}


class Raising(SlowEnv):
    """Raises in the whole call that holds an episode from a broken state. where: in which kind of call."""

    def __init__(self, num_envs: int, where: str) -> None:
        super().__init__(num_envs)
        self._where = where
        self.calls = 0

    def _break(self, where: str, env_ids: Sequence[int], begun: int = 0) -> None:
        """Raise where one of these episodes, of those that made `begun` steps, is to break a call of this kind."""
        held = [self._spec[env_id] for env_id in env_ids if self._steps[env_id] >= begun]
        if where == self._where and any(spec and (spec.task, spec.init_state) in BROKEN for spec in held):
            raise ZeroDivisionError("the solver gave up")

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        self._break("reset", env_ids)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        self.calls += 1
        begun = {env_id: int(self._steps[env_id]) for env_id in env_ids}
        result = super().step(env_ids, actions)
        doomed = [env_id for env_id in env_ids if begun[env_id]]
        self._break("step", doomed)  # after all have moved, so that nobody can go on from there
        return result

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        self._break("observe", env_ids, begun=1)
        return super().observe(env_ids, out)


def assert_same(one: Outcome, two: Outcome) -> None:
    """The same rows, weights and broken states."""
    for mine, theirs in zip(one.batches, two.batches, strict=True):
        assert_same_rows(mine, theirs)
    assert all(torch.equal(one.weights[name], tensor) for name, tensor in two.weights.items())
    assert one.sampler.broken.found == two.sampler.broken.found != {}


@pytest.mark.parametrize("where", ["reset", "step", "observe"])
@pytest.mark.parametrize("name", SETUPS)
def test_training_goes_on_as_where_the_simulator_says_failed(name: str, where: str, tmp_path: Path) -> None:
    expected = serial(SETUPS[name], tmp_path)
    assert_same(serial(SETUPS[name], tmp_path, env=Raising(6, where)), expected)
    assert_same(pipelined(SETUPS[name], tmp_path, env=Raising(6, where)), expected)


@pytest.mark.parametrize("where", ["reset", "step", "observe"])
def test_an_evaluation_measures_the_other_episodes(where: str, caplog: pytest.LogCaptureFixture) -> None:
    specs = [EpisodeSpec(state, "toy/reach", state, seed=state) for state in range(6)]
    whole = run_once(ToyEnv(4), ToyPolicy(), specs, "sample")
    broken: list[EpisodeSpec] = []
    found = run_once(Raising(4, where), ToyPolicy(), specs, "sample", on_broken=broken.append)
    assert broken == [specs[3]]
    assert found == {number: result for number, result in whole.items() if number != 3}
    (said,) = caplog.records  # once, with where it was raised
    assert said.exc_info is not None
    assert said.exc_info[0] is ZeroDivisionError


def test_episodes_go_together_again_once_they_came_to_their_end() -> None:
    """Three lost beside a broken one, run apart; afterwards a call holds all four."""
    env = Raising(4, "step")
    driver = IsolatedVecEnv(env)
    specs = [EpisodeSpec(state, "toy/reach", state, seed=state) for state in (0, 1, 2, 3)]
    actions = torch.zeros(4, CHUNK, ACTION_DIM)
    driver.reset(range(4), specs)
    driver.step(range(4), actions)
    result = driver.step(range(4), actions)
    assert result.failed.tolist() == result.lost.tolist() == [True] * 4
    driver.reset(range(4), specs)
    driver.step(range(4), actions)
    result = driver.step(range(4), actions)
    assert result.failed.tolist() == [False, False, False, True]
    assert not result.lost.any()
    rows = [0, 1, 2]
    while not (result.terminated | result.truncated).any():
        result = driver.step(rows, actions[rows])
    sound = [replace(spec, episode_id=9 + spec.episode_id) for spec in specs[:3]]
    for again in (specs[:3], sound):
        driver.reset(rows, again)
        before = env.calls
        driver.step(rows, actions[rows])
        assert env.calls == before + 1


def test_what_is_not_an_episodes_doing_is_raised() -> None:
    class Full(ToyEnv):
        error: Exception = MemoryError()

        def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
            raise self.error

    env = Full(1)
    driver = IsolatedVecEnv(env)
    driver.reset([0], [EpisodeSpec(0, "toy/reach", 0, 0)])
    for error in (MemoryError(), UserError("no"), torch.OutOfMemoryError()):
        env.error = error
        with pytest.raises(type(error)):
            driver.step([0], torch.zeros(1, CHUNK, ACTION_DIM))
    with pytest.raises(ValueError, match=r"actions must be \[1, K, 2\]"):
        driver.step([0], torch.zeros(1, CHUNK, 3))
    env.error, env.info = ValueError("the arm is gone"), replace(env.info, repeatable=False)
    with pytest.raises(ValueError, match="the arm is gone"):  # a real robot does not go on
        IsolatedVecEnv(env).step([0], torch.zeros(1, CHUNK, ACTION_DIM))


def test_a_film_of_an_episode_that_raises_says_that_the_simulator_failed() -> None:
    spec = EpisodeSpec(0, "toy/reach", 3, 0)

    def film(env: ToyEnv) -> None:
        record_episode(env, ToyPolicy(), spec, "sample", cameras=["front"], size=4, write=lambda image: None)

    for where in ("reset", "step", "observe"):
        with pytest.raises(SimulatorFailed):
            film(Raising(1, where))
    blind = ToyEnv(1)
    blind.frame = lambda *args: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(SimulatorFailed):
        film(blind)


def test_runs_lost_beside_others_cost_no_attempt_but_are_not_endless() -> None:
    spec, attempts = EpisodeSpec(0, "toy/reach", 0, 0), RetryPolicy()
    assert attempts.record_failure(spec, FailureCause.SIMULATOR) == 1
    assert {attempts.record_failure(spec, FailureCause.LOST) for _ in range(MAX_LOST)} == {1}
    found = [attempts.record_failure(spec, FailureCause.LOST) for _ in range(MAX_ATTEMPTS - 1)]
    assert found == [2, 3, 4, None]


@dataclass(frozen=True)
class Deadly:
    """Episodes from broken states kill the process, as they begin or in their second decision."""

    where: str

    def __call__(self, num_envs: int) -> ToyEnv:
        class Env(Raising):
            def _break(self, where: str, env_ids: Sequence[int], begun: int = 0) -> None:
                try:
                    super()._break(where, env_ids, begun)
                except ZeroDivisionError:
                    os.kill(os.getpid(), signal.SIGKILL)

        return Env(num_envs, self.where)


@pytest.mark.process
@pytest.mark.parametrize("where", ["reset", "step", "observe"])
def test_a_state_that_kills_its_process_costs_its_neighbours_no_attempt(where: str) -> None:
    specs = [EpisodeSpec(state, "toy/reach", state, seed=state) for state in range(5)]
    whole = run_once(ToyEnv(5), ToyPolicy(), specs, "sample")
    broken: list[EpisodeSpec] = []
    with closing(ProcessVecEnv(Deadly(where), 5, processes=1)) as env:
        found = run_once(env, ToyPolicy(), specs, "sample", on_broken=broken.append)
        assert env.replaced == {"died": EVALUATION_ATTEMPTS + 1}
    assert broken == [specs[3]]
    assert found == {number: result for number, result in whole.items() if number != 3}
