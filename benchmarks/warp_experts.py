"""Scripted experts at the worlds of either engine, for `warp_physics.py`: each sees its own engine's world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import mujoco
import numpy as np

from embodied_rl.factory.tasks import load_tasks
from embodied_rl.rng import philox
from embodied_rl.sim import tabletop
from embodied_rl.sim.libero.expert import Expert as LiberoExpert
from embodied_rl.sim.libero.expert import Surface
from embodied_rl.sim.libero.protocol import OPENVLA
from embodied_rl.sim.libero.tasks import LiberoTask
from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco.vec_env import NativeVecEnv
from embodied_rl.sim.tabletop.expert import Expert as TabletopExpert
from embodied_rl.sim.warp.vec_env import WarpVecEnv
from embodied_rl.types import Array

Act = Callable[[], Array]
"""The next action of one episode, float [7]."""


def tasks_of(suite: str, indices: Sequence[int]) -> list[MujocoTask]:
    """Tasks of a suite (of these numbers; none given: all), of LIBERO's with the settle steps in their horizon."""
    found = tabletop.load_suite(suite) if suite in tabletop.suites() else load_tasks(suite, era="current")
    kept = [task for index, task in enumerate(found) if not indices or index in indices]
    return [
        replace(task, max_episode_steps=task.max_episode_steps + OPENVLA.settle_steps)
        if isinstance(task, LiberoTask)
        else task
        for task in kept
    ]


def settle_actions(task: MujocoTask) -> Array:
    """What an episode begins with: float32 [S, 7]."""
    return OPENVLA.settle_actions() if isinstance(task, LiberoTask) else np.zeros((0, 7), np.float32)


def expert_of(env: NativeVecEnv | WarpVecEnv, env_id: int, task: MujocoTask, surfaces: dict[str, Surface]) -> Act:
    """The expert of one env, which holds an episode of `task`; `surfaces` keeps what is known of models."""
    look, held = _eyes(env, env_id, task)
    model = env.model(env_id)
    if not isinstance(task, LiberoTask):
        expert = TabletopExpert(task, model)
        expert.reset()
        return lambda: expert.act(look())
    if task.name not in surfaces:
        surfaces[task.name] = Surface(model)
    planner = LiberoExpert(task, model, surfaces[task.name], philox(env_id))
    return lambda: planner.act(look(), held())


def _eyes(
    env: NativeVecEnv | WarpVecEnv, env_id: int, task: MujocoTask
) -> tuple[Callable[[], mujoco.MjData], Callable[[], Array]]:
    """What the expert sees: MuJoCo's data of the env, and which predicates of the goal hold."""
    if isinstance(env, NativeVecEnv):
        return lambda: env.data(env_id), lambda: env.held(env_id)
    model = env.model(env_id)
    copy = Env(model, find_robot(model), compile_goal(task, model), "fast")

    def look() -> mujoco.MjData:
        env.mirror(env_id, copy.data)
        return copy.data

    return look, copy.judge
