"""MuJoCo Warp behind the VecEnv contract, on Warp's CPU device where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.kernel import Robot
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import VecEnvContract, draw, same_observations
from tests.sim.warp.worlds import DEVICE, MISSING, needs_warp, short_tasks

if TYPE_CHECKING or not MISSING:
    from embodied_rl.sim.warp import scene as scene_module
    from embodied_rl.sim.warp.batch import Settings, Sizes, capacity
    from embodied_rl.sim.warp.randomize import Randomization
    from embodied_rl.sim.warp.vec_env import WarpVecEnv, _repeats

pytestmark = needs_warp
STEPS = 20


@needs_warp
class TestWarpContract(VecEnvContract):
    tasks = tuple(task.name for task in short_tasks())

    def make(self, num_envs: int) -> VecEnv:
        return WarpVecEnv(short_tasks(6), num_envs, device=DEVICE, image_size=16, deterministic=True)


@pytest.fixture(scope="module")
def env() -> Iterator[WarpVecEnv]:
    with closing(WarpVecEnv(short_tasks(), 3, device=DEVICE, cameras=0, renderer=None, deterministic=True)) as env:
        yield env


def specs(count: int) -> list[EpisodeSpec]:
    names = [task.name for task in short_tasks()]
    return [EpisodeSpec(i, names[i % 2], i, i) for i in range(count)]


def gentle(rows: int) -> torch.Tensor:
    """Slow motions above the table, float32 [rows, STEPS, 7]."""
    actions = draw_actions(rows) * 0.3
    actions[..., 2] = actions[..., 2].abs()
    return actions


def draw_actions(rows: int) -> torch.Tensor:
    values = np.random.default_rng(3).uniform(-1, 1, (rows, STEPS, 7))
    return torch.from_numpy(values.astype(np.float32))


def positions(env: WarpVecEnv, env_id: int) -> Array:
    scene = env._held[env_id]
    return scene.rows[env_id, scene.columns["qpos"]].cpu().numpy()


def worst_difference(env: WarpVecEnv) -> float:
    """Largest difference (m, rad) of a joint position from the CPU engine's after 20 control steps."""
    actions = gentle(3)
    with closing(MujocoVecEnv(short_tasks(), 3, threads=1)) as exact:
        for each in (exact, env):
            each.reset(range(3), specs(3))
            assert not each.step(range(3), actions).failed.any()
        return max(float(np.abs(positions(env, i) - exact.data(i).qpos).max()) for i in range(3))


def test_states_follow_the_native_engine_where_nothing_touches(env: WarpVecEnv) -> None:
    assert worst_difference(env) < 1e-4


def test_a_weaker_null_space_is_seen_in_the_states(monkeypatch: pytest.MonkeyPatch) -> None:
    original = scene_module.find_robot

    def weakened(model: Any) -> Robot:
        robot = original(model)
        return robot._replace(gains=robot.gains._replace(null_kp=0.9 * robot.gains.null_kp))

    monkeypatch.setattr(scene_module, "find_robot", weakened)
    with closing(WarpVecEnv(short_tasks(), 3, device=DEVICE, cameras=0, renderer=None, deterministic=True)) as broken:
        assert worst_difference(broken) > 1e-4


def test_proprio_is_that_of_the_native_engine(env: WarpVecEnv) -> None:
    with closing(MujocoVecEnv(short_tasks(), 1, threads=1)) as exact:
        exact.reset([0], specs(1))
        env.reset([0], specs(1))
        for _ in range(2):
            expected, out = np.zeros(8, np.float32), env.new_observation(1)
            exact._slots[0].env.proprio(expected)  # type: ignore[union-attr]
            env.observe([0], out)
            np.testing.assert_allclose(out.proprio[0].cpu().numpy(), expected, atol=2e-6)
            exact.step([0], gentle(1)[:, :5])
            env.step([0], gentle(1)[:, :5])


def test_a_world_that_is_not_finite_fails_alone(env: WarpVecEnv) -> None:
    ends = []
    for sick in (False, True):
        env.reset(range(3), specs(3))
        if sick:
            env._held[1].rows[1, 0] = torch.nan
        result = env.step(range(3), draw(env.info, 3))
        assert result.failed.tolist() == [False, sick, False]
        assert int(result.steps_taken[1]) == (1 if sick else 4)
        assert not (sick and result.reward[1].any())
        ends.append(np.stack([positions(env, i) for i in (0, 2)]))
    # a GPU sums in another order beside a world that is not finite, also where it is deterministic
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=0 if DEVICE == "cpu" else 1e-6)
    with pytest.raises(ValueError, match="env 1 holds no running episode"):
        env.step([1], draw(env.info, 1))


def test_a_reset_and_a_step_leave_other_worlds_untouched_bit_for_bit(env: WarpVecEnv) -> None:
    env.reset(range(3), specs(3))
    env.step(range(3), draw(env.info, 3))
    rows = env._held[0].rows
    before, seen = rows.clone(), [env.new_observation(1) for _ in range(2)]
    env.observe([1], seen[0])
    env.reset([0], specs(1))
    env.step([2], draw(env.info, 1, seed=4))
    env.observe([1], seen[1])
    assert torch.equal(before[1], rows[1])
    assert torch.equal(before[3], rows[3])  # the world at rest
    assert not torch.equal(before[2], rows[2])
    same_observations(*seen)


def test_contacts_beyond_the_buffers_fail_the_step_and_the_buffers_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene_module, "TABLETOP_SIZES", Sizes(contacts=2, rows=96))
    with closing(WarpVecEnv(short_tasks(), 2, device=DEVICE, cameras=0, renderer=None)) as small:
        failures = []
        for _ in range(5):
            small.reset([0, 1], specs(2))
            failures.append(small.step([0, 1], draw(small.info, 2)).failed.tolist())
        assert failures[0] == [True, True]  # contacts are one pool, so neighbours lost some too
        assert failures[-1] == [False, False]
        assert 2 < small._held[0]._sizes.contacts <= 32
        assert small._held[0]._sizes.rows == 96


def test_only_the_solver_caps_are_no_failure(env: WarpVecEnv) -> None:
    env.reset([0], specs(1))
    env.step([0], draw(env.info, 1))
    batch = env._held[0].batch(1)
    for bit in range(11):
        batch._overflow[:] = 1 << bit
        assert bool(batch.broken().all()) == ((1 << bit) not in (512, 1024)), bit
    batch._overflow.zero_()


def test_room_that_cannot_grow_is_an_error() -> None:
    assert Sizes(4, 8).grown(4) == Sizes(8, 8)
    assert Sizes(4, 8).grown(8 | 1) == Sizes(8, 16)
    assert Sizes(4, 8).grown(128) == Sizes(4, 8)


def test_few_sizes_of_batches_serve_any_number_of_worlds() -> None:
    assert {capacity(count, 1000) for count in range(1, 1001)} == {1, 4, 16, 63, 250, 1000}
    assert all(capacity(count, 1000) >= count for count in range(1, 1001))


def test_what_cannot_run_is_refused() -> None:
    if DEVICE == "cpu":
        with pytest.raises(UserError, match="GPU"):
            WarpVecEnv(short_tasks(), 1, graph=True)
    with pytest.raises(UserError, match="cameras"):
        WarpVecEnv(short_tasks(), 1, cameras=3)
    with pytest.raises(UserError, match="same name"):
        WarpVecEnv(short_tasks() * 2, 1)


@pytest.mark.parametrize(
    ("device", "deterministic", "says"),
    [("cpu", False, ""), ("cuda:0", False, ", repeats up to rounding"), ("cuda:0", True, ", repeats bit for bit")],
)
def test_the_stamp_says_whether_a_gpu_repeats(device: str, deterministic: bool, says: str) -> None:
    settings = Settings(device, graph=False, deterministic=deterministic)
    assert _repeats(settings) == says == _repeats(settings, Randomization(color=0.1))


def test_the_stamp_promises_no_exact_repetition_of_worlds_of_different_physics() -> None:
    settings = Settings("cuda:0", graph=False, deterministic=True)
    assert _repeats(settings, Randomization(mass=0.1)) == ", repeats up to rounding"
