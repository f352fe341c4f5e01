"""Many tasks in one process: memory stays bounded, and what was dropped changes nothing when it comes back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import mujoco
import numpy as np
import torch

from embodied_rl.sim.mujoco.pool import ScenePool
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import Array, EpisodeSpec

TASKS = load_suite("tabletop_object")[:4]
SIZE = mujoco.mj_sizeModel(TASKS[0].build_physics())


class _Recorder:
    """A renderer that only counts its scenes."""

    name = "recorder"

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.added = 0

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        self.added += 1
        self.held.add(self.added)
        return self.added

    def remove_scene(self, scene: int) -> None:
        self.held.remove(scene)

    def render(
        self,
        scene: int,
        xpos: Array,
        xmat: Array,
        cameras: tuple[str, ...],
        out: Array,
        site_groups: tuple[int, ...] = (),
    ) -> None:
        assert scene in self.held


def _counted(tasks: list[MujocoTask]) -> tuple[dict[str, MujocoTask], Counter[str]]:
    """The tasks, and how often each one's physics model was built."""
    built: Counter[str] = Counter()

    def count(task: MujocoTask) -> mujoco.MjModel:
        built[task.name] += 1
        return task.build_physics()

    return {task.name: replace(task, build_physics=lambda task=task: count(task)) for task in tasks}, built


def _pool(max_bytes: int, max_spare: int = 4) -> tuple[ScenePool, Counter[str]]:
    tasks, built = _counted(TASKS)
    return ScenePool(tasks, None, None, max_bytes, max_spare), built


def test_the_least_recently_used_scene_goes_first() -> None:
    pool, built = _pool(int(2.5 * SIZE))
    first, second, third = (task.name for task in TASKS[:3])
    for name in (first, second, first, third, first, second):
        pool.give_back(*pool.take(name))
    assert built == {first: 1, second: 2, third: 1}


def test_a_held_scene_stays_whatever_the_limit() -> None:
    pool, built = _pool(0)
    scene, world = pool.take(TASKS[0].name)
    for _ in range(2):
        pool.give_back(*pool.take(TASKS[1].name))
    again, other = pool.take(TASKS[0].name)
    assert again is scene
    assert other is not world
    assert built == {TASKS[0].name: 1, TASKS[1].name: 2}


def test_a_world_that_was_given_back_is_used_again() -> None:
    pool, _ = _pool(100 * SIZE, max_spare=1)
    scene, world = pool.take(TASKS[0].name)
    pool.give_back(scene, world)
    assert pool.take(TASKS[0].name)[1] is world
    pool.give_back(scene, world)
    pool.give_back(*pool.take(TASKS[1].name))  # one spare world is kept, the newest
    assert pool.take(TASKS[0].name)[1] is not world


def _run(env: MujocoVecEnv, task: int, seed: int) -> Array:
    env.reset([0], [EpisodeSpec(0, TASKS[task].name, seed, 0)])
    env.step([0], torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (1, 3, 7)).astype(np.float32)))
    return env.data(0).qpos.copy()


def test_dropping_scenes_changes_no_episode() -> None:
    """A tiny pool, which builds a scene at every reset, against one that keeps all; also on the renderer's side."""
    renderer = _Recorder()
    tight = MujocoVecEnv(TASKS, 1, threads=1, renderer=renderer, image_size=4, max_scene_bytes=0)
    roomy = MujocoVecEnv(TASKS, 1, threads=1)
    for task, seed in ((0, 1), (1, 2), (0, 1), (2, 3), (1, 2)):
        np.testing.assert_array_equal(_run(tight, task, seed), _run(roomy, task, seed))
        tight.observe([0], tight.new_observation(1))
        assert len(renderer.held) == 1
    assert renderer.added == 5
    tight.close()
    roomy.close()
