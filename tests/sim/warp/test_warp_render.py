"""Pictures by MuJoCo Warp against the CPU ray caster, which tests/sim/render compares with OpenGL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.render.raycast import RaycastRenderer
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import VecEnvContract, draw
from tests.sim.warp.worlds import DEVICE, MISSING, needs_warp, short_tasks

if TYPE_CHECKING or not MISSING:
    from embodied_rl.sim.warp.batch import Settings
    from embodied_rl.sim.warp.drawn_env import WarpDrawnEnv
    from embodied_rl.sim.warp.render import SceneRenderer, View

pytestmark = needs_warp
SIZE, WORLDS = 96, 3


@needs_warp
class TestWarpImagesContract(VecEnvContract):
    tasks = tuple(task.name for task in short_tasks())

    def make(self, num_envs: int) -> VecEnv:
        by_rays = MujocoVecEnv(short_tasks(20), num_envs, image_size=16, threads=1, cameras=0)
        return WarpDrawnEnv(by_rays, device=DEVICE)


@pytest.fixture(scope="module")
def scene() -> tuple[SceneRenderer, Array]:
    """A renderer of the visual model, and joint positions float64 [WORLDS, nq]."""
    task = short_tasks()[0]
    model = task.build_visual()
    return SceneRenderer(model, WORLDS, Settings(DEVICE, False, False)), task.init_states[:WORLDS, 1 : 1 + model.nq]


def poses(model: mujoco.MjModel, qpos: Array) -> mujoco.MjData:
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    return data


def by_ray_caster(model: mujoco.MjModel, qpos: Array) -> Array:
    """uint8 [WORLDS, V, SIZE, SIZE, 3]."""
    renderer = make_renderer("raycast", ())
    number, out = renderer.add_scene(model), np.zeros((len(qpos), len(PANDA.cameras), SIZE, SIZE, 3), np.uint8)
    for row, at in enumerate(qpos):
        data = poses(model, at)
        renderer.render(number, data.xpos, data.xmat, PANDA.cameras, out[row])
    return out


def test_pictures_have_the_native_layout_and_colours(scene: tuple[SceneRenderer, Array]) -> None:
    renderer, qpos = scene
    ours = renderer.draw(torch.from_numpy(qpos).to(DEVICE), View(PANDA.cameras, SIZE)).cpu().numpy()
    by_rays = by_ray_caster(renderer.host, qpos)
    assert (ours.dtype, ours.shape) == (np.uint8, by_rays.shape)

    def error(image: Array) -> float:
        return float(np.abs(image.astype(int) - by_rays).mean())

    assert error(ours) < 1.0
    for broken in (ours[..., ::-1], ours[:, :, ::-1], ours[:, :, :, ::-1], ours[:, ::-1], ours[::-1]):
        assert error(broken) > 1.5  # colours, rows, columns, cameras, worlds


def test_depth_and_geoms_are_those_of_the_native_model(scene: tuple[SceneRenderer, Array]) -> None:
    renderer, qpos = scene
    geoms, depth = renderer.geometry(torch.from_numpy(qpos).to(DEVICE), View(PANDA.cameras, SIZE))
    caster = RaycastRenderer()
    number = caster.add_scene(renderer.host)
    same, errors = [], []
    for row, at in enumerate(qpos):
        data = poses(renderer.host, at)
        for v, camera in enumerate(PANDA.cameras):
            ids, far = caster.geometry(number, data.xpos, data.xmat, camera, SIZE, SIZE)
            equal = geoms[row, v].cpu().numpy() == ids
            same.append(equal.mean())
            seen = equal & (ids >= 0)
            errors.append(np.abs(depth[row, v].cpu().numpy() - far)[seen])
    assert np.mean(same) >= 0.999
    assert np.percentile(np.concatenate(errors), 99) <= 1e-4


def test_a_picture_does_not_depend_on_the_other_worlds(scene: tuple[SceneRenderer, Array]) -> None:
    renderer, qpos = scene
    at, view = torch.from_numpy(qpos).float().to(DEVICE), View(PANDA.cameras[:1], 32)
    together = renderer.draw(at, view).clone()
    assert torch.equal(renderer.draw(at[2:], view)[0], together[2])
    sick = at.clone()
    sick[0] = torch.nan
    assert torch.equal(renderer.draw(sick, view)[1:], together[1:])


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[MujocoVecEnv, WarpDrawnEnv]]:
    """Native worlds drawn by the ray caster, and the same drawn by MuJoCo Warp."""
    tasks = short_tasks()
    plain = MujocoVecEnv(tasks, 2, image_size=64, renderer=make_renderer("raycast", ()), threads=1)
    drawn = WarpDrawnEnv(MujocoVecEnv(tasks, 2, image_size=64, threads=1, cameras=0), device=DEVICE)
    with closing(plain), closing(drawn):
        yield plain, drawn


def test_pictures_show_the_substep_that_native_frames_show(pair: tuple[MujocoVecEnv, WarpDrawnEnv]) -> None:
    drawn = pair[1]
    specs = [EpisodeSpec(i, short_tasks()[i].name, i, i) for i in range(2)]
    for env in pair:
        env.reset([0, 1], specs)
    for _ in range(2):
        seen = [env.new_observation(2) for env in pair]
        for env, out in zip(pair, seen, strict=True):
            env.observe([0, 1], out)
        assert torch.equal(seen[0].proprio, seen[1].proprio.cpu())
        assert seen[0].instruction == seen[1].instruction
        assert float((seen[0].images.int() - seen[1].images.cpu().int()).abs().float().mean()) < 1.0
        results = [env.step([0, 1], draw(env.info, 2)) for env in pair]
        assert torch.equal(results[0].reward, results[1].reward.cpu())
    world = drawn._physics.single_env(0)[1]
    assert np.array_equal(poses(world.model, world.seen.qpos).xpos, world.seen.xpos)
    assert not np.array_equal(world.seen.qpos, world.data.qpos)


def test_worlds_with_their_own_pictures_are_refused() -> None:
    with pytest.raises(UserError, match="cameras=0"):
        WarpDrawnEnv(MujocoVecEnv(short_tasks(), 1, threads=1))
