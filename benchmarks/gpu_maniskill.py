"""ManiSkill under `bench gpu`: control steps a second of many worlds in one simulation, with images and without."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from embodied_rl.config.env import ManiSkillConfig
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import View
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv

TASK, SUITE = "PushCube-v1", "maniskill"
STEPS = 20
"""Fewer than the task's horizon."""


def maniskill(quick: bool) -> Iterator[dict[str, Any]]:
    """Rows: worlds, pictures of each in a step, control steps of all worlds a second."""
    for worlds in (16,) if quick else (64, 512):
        config = ManiSkillConfig(num_envs=worlds, device="cuda")
        tasks = load(SUITE, TASK, config)
        for cameras in (0, 2):
            view = View(cameras=cameras, fit="pad") if cameras else View()
            with open_tasks(tasks, config, view) as env:
                yield {"worlds": worlds, "images": cameras, "per_s": steps_per_second(env, f"{SUITE}/{TASK}", STEPS)}


def steps_per_second(env: VecEnv, task: str, steps: int) -> float:
    """Of all envs together; each step is observed, as a policy does."""
    ids = list(range(env.num_envs))
    env.reset(ids, [EpisodeSpec(env_id, task, env_id, 0) for env_id in ids])
    seen = env.new_observation(len(ids))
    still = torch.zeros((len(ids), 1, env.info.action_dim), device=env.info.device)
    env.step(ids, still)
    if env.info.device != "cpu":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        env.step(ids, still)
        env.observe(ids, seen)
    if env.info.device != "cpu":
        torch.cuda.synchronize()
    return len(ids) * steps / (time.perf_counter() - begun)
