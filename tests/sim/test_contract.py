"""Every env of the project keeps the contract; broken ones do not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from embodied_rl.sim.libero.protocol import protocol
from embodied_rl.sim.mujoco.factory import MujocoFactory
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import LeakContract, SuccessContract, VecEnvContract
from tests.sim.wrappers.fragile import Fragile
from tests.toy_world import TASKS, ToyEnv

TABLETOP = tuple(load_suite("tabletop_object")[:2])
# state 0 of the toy: from the middle to the goal at (-0.75, -0.75)
TOY_SUCCESS = EpisodeSpec(0, "toy/reach", 0, 1), -torch.ones(1, 8, 2)


def native(num_envs: int, *, stop_at_success: bool = True) -> VecEnv:
    return MujocoFactory(
        TABLETOP,
        "raycast",
        official=False,
        image_size=16,
        threads=2,
        stop_at_success=stop_at_success,
        cameras=2,
        max_scene_bytes=1 << 28,
    )(num_envs)


class Reset(ToyEnv):
    """The toy; an episode that has not ended may be replaced."""

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id in env_ids:
            self._spec[env_id] = None
        super().reset(env_ids, episodes)


class TestToy(VecEnvContract, SuccessContract):
    tasks = tuple(TASKS)
    success = TOY_SUCCESS

    def make(self, num_envs: int) -> VecEnv:
        return Reset(num_envs)


class TestNative(VecEnvContract):
    tasks = tuple(task.name for task in TABLETOP)

    def make(self, num_envs: int) -> VecEnv:
        return native(num_envs)


@pytest.mark.process
class TestSubprocess(VecEnvContract, SuccessContract):
    tasks = tuple(TASKS)
    success = TOY_SUCCESS

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, num_envs: int) -> VecEnv:
        return ProcessVecEnv(Fragile(self.folder, {}), num_envs, processes=min(num_envs, 2))


class TestProtocol(VecEnvContract):
    tasks = tuple(task.name for task in TABLETOP)

    def make(self, num_envs: int) -> VecEnv:
        inside = native(num_envs, stop_at_success=False)
        return ProtocolEnv(inside, protocol("openvla_oft"), image_size=16, cameras=2)


class ResetsItself(Reset):
    """Begins the same episode again when it ends."""

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        held = {env_id: self._spec[env_id] for env_id in env_ids}
        result = super().step(env_ids, actions)
        for env_id, spec in held.items():
            if self._spec[env_id] is None and spec is not None:
                self.reset([env_id], [spec])
        return result


class DependsOnEnvId(Reset):
    """Its proprio tells which env it is."""

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        super().observe(env_ids, out)
        out.proprio[: len(env_ids), 0] += torch.tensor(env_ids, dtype=torch.float32)


class TouchesOthers(Reset):
    """A reset moves whoever is in env 0."""

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        self._position[0] += 0.01


class RunsOn(Reset):
    """Says that the whole chunk ran."""

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        result = super().step(env_ids, actions)
        result.reward[:, -1] += 1.0
        return result


class TakesWhatComes(Reset):
    """Replaces numbers that are not finite."""

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        return super().step(env_ids, actions.nan_to_num())


class Unclipped(Reset):
    """Goes three times as far for an action three times as large."""

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        for row, env_id in enumerate(env_ids):
            self._position[env_id] += 0.01 * float(actions[row].abs().max())
        return super().step(env_ids, actions)


class AlwaysSucceeds(Reset):
    """Reports success although its tasks have no goal."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.info = replace(self.info, has_success=False)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        result = super().step(env_ids, actions)
        result.success[:] = True
        return result


class WrongShape(Reset):
    """Allocates proprio of another size."""

    def new_observation(self, rows: int) -> Observation:
        out = super().new_observation(rows)
        out.proprio = torch.zeros(rows, 2, dtype=torch.float64)
        return out


@pytest.mark.parametrize(
    ("broken", "test", "arguments"),
    [
        (ResetsItself, "an_ended_episode_shows_its_end_and_is_not_reset_by_itself", ()),
        (DependsOnEnvId, "what_happens_does_not_depend_on_the_env_id", ()),
        (TouchesOthers, "a_reset_of_some_envs_leaves_the_others_alone", ()),
        (RunsOn, "the_horizon_stops_a_chunk_early_and_truncates", ()),
        (RunsOn, "a_chunk_is_its_steps", ()),
        (WrongShape, "observations_have_the_documented_shapes", ()),
        (AlwaysSucceeds, "chunk_results_have_the_documented_shapes_and_ranges", ()),
        (Unclipped, "actions_are_clipped_to_their_bounds", ()),
        (TakesWhatComes, "actions_that_are_not_finite_are_refused_and_move_nobody", (torch.nan,)),
    ],
)
def test_a_broken_env_is_found(broken: type[ToyEnv], test: str, arguments: tuple[float, ...]) -> None:
    class Case(TestToy):
        def make(self, num_envs: int) -> VecEnv:
            return broken(num_envs)

    run = getattr(Case(), f"test_{test}")
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        run(broken(3), *arguments)
    getattr(TestToy(), f"test_{test}")(Reset(3), *arguments)  # the whole one passes


class Forgets(Reset):
    """The toy, which keeps a list of all that it began, without that list."""

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        self.started.clear()


class Hoards(Forgets):
    """The toy, which keeps 256 KiB of every call of `reset`."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.hoard = bytearray()

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        self.hoard += bytes(1 << 18)


class Leaks(TestToy, LeakContract):
    """Not collected by itself: the toy would fail."""

    __test__ = False


def leaks(env: type[ToyEnv]) -> bool:
    """Whether the contract says so."""
    try:
        Leaks().test_many_resets_leave_nothing_behind(env(3))
    except AssertionError:
        return True
    return False


@pytest.mark.process
def test_what_is_kept_of_every_reset_is_found() -> None:
    # In a process of its own: what other tests left here may be given back meanwhile, which hides a leak.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert list(pool.map(leaks, (Forgets, Reset, Hoards))) == [False, True, True]
