"""Worlds of the tabletop without cameras, and action sequences of its scripted expert."""

from __future__ import annotations

from contextlib import closing
from functools import cache

import numpy as np
import torch

from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.state.staged import Shaping
from embodied_rl.sim.state.vector import StateLayout
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.tabletop.expert import Expert
from embodied_rl.types import EpisodeSpec

DRAWER, STOVE, TWO = (
    "open_the_drawer_of_the_cabinet",
    "turn_on_the_stove",
    "put_the_bowl_on_the_plate_and_turn_on_the_stove",
)


def task(suite: str, short: str) -> MujocoTask:
    """The suite's task of that short name."""
    return next(each for each in load_suite(suite) if each.name == f"{suite}/{short}")


def open_worlds(suite: str, num_envs: int = 1, *, shaping: Shaping | None = None, state: bool = True) -> MujocoVecEnv:
    """Worlds of a whole suite, without a renderer."""
    tasks = load_suite(suite)
    layout = StateLayout.of(tasks) if state else None
    return MujocoVecEnv(tasks, num_envs, cameras=0, threads=1, layout=layout, shaping=shaping)


@cache
def expert_actions(suite: str, short: str) -> torch.Tensor:
    """Actions float32 [T, 7] that solve a task from initial state 0; its goal holds after the last."""
    chosen, actions = task(suite, short), []
    with closing(open_worlds(suite, state=False)) as env:
        env.reset([0], [EpisodeSpec(0, chosen.name, 0, 0)])
        expert = Expert(chosen, env.model(0))
        expert.reset()
        for _ in range(chosen.max_episode_steps):
            actions.append(torch.from_numpy(expert.act(env.data(0)).astype(np.float32)))
            if env.step([0], actions[-1][None, None]).success.all():
                return torch.stack(actions)
    raise AssertionError(f"the expert does not solve {chosen.name}")


def random_actions(steps: int, seed: int) -> torch.Tensor:
    """float32 [T, 7] in [-1, 1]."""
    return torch.from_numpy(np.random.default_rng(seed).uniform(-1, 1, (steps, 7)).astype(np.float32))
