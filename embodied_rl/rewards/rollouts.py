"""Episodes of a policy with the pictures of every decision and of the end, for a reward model to judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied_rl.policy import Policy
from embodied_rl.rewards.card import JudgedEpisode, judge_episode
from embodied_rl.rewards.judge import Judge
from embodied_rl.rng import DecisionRng
from embodied_rl.types import EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv


def judge_rollouts(judge: Judge, env: VecEnv, policy: Policy, specs: Sequence[EpisodeSpec]) -> list[JudgedEpisode]:
    """Let the policy act in the episodes of `specs`, as many at a time as there are envs, and judge them.

    It samples, as in training: greedy it would fail too rarely. Episodes whose simulator fails are left out.
    """
    judged: list[JudgedEpisode] = []
    for first in range(0, len(specs), env.num_envs):
        judged += _judge_some(judge, env, policy, specs[first : first + env.num_envs])
    return judged


def _judge_some(judge: Judge, env: VecEnv, policy: Policy, specs: Sequence[EpisodeSpec]) -> list[JudgedEpisode]:
    """One episode in each of the first envs."""
    env.reset(list(range(len(specs))), list(specs))
    frames: list[list[torch.Tensor]] = [[] for _ in specs]
    words = [""] * len(specs)
    success, failed = [False] * len(specs), [False] * len(specs)
    running, decisions = list(range(len(specs))), 0

    def observe(env_ids: Sequence[int]) -> Observation:
        obs = env.new_observation(len(env_ids))
        env.observe(env_ids, obs)
        for row, env_id in enumerate(env_ids):
            frames[env_id].append(obs.images[row].cpu())
            words[env_id] = obs.instruction[row]
        return obs

    while running:
        obs = observe(running)
        seeds = np.array([specs[env_id].seed for env_id in running])
        actions = policy.act(obs, DecisionRng(seeds, np.full(len(running), decisions)), "sample").actions
        result = env.step(running, actions)
        decisions += 1
        over = result.terminated | result.truncated | result.failed
        for row, env_id in enumerate(running):
            success[env_id] = bool(result.success[row])
            failed[env_id] = bool(result.failed[row])
        ended = [env_id for row, env_id in enumerate(running) if over[row] and not failed[env_id]]
        running = [env_id for row, env_id in enumerate(running) if not over[row]]
        if ended:
            observe(ended)
    judged = []
    for env_id in range(len(specs)):
        if not failed[env_id]:
            images, texts = torch.stack(frames[env_id]), [words[env_id]] * len(frames[env_id])
            judged.append(judge_episode(judge, images, texts, success=success[env_id]))
    return judged
