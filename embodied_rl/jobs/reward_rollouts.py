"""Episodes of a policy with the pictures of every decision and of the end, for a reward model to judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied_rl.config.suites import usual_env
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.factory.backends import check_observes
from embodied_rl.factory.made_for import need_control_rate
from embodied_rl.factory.policies import CheckpointOptions, open_policy, policy_folder
from embodied_rl.factory.suites import load, open_tasks, view_of
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policy import Policy
from embodied_rl.rewards.base import Judge
from embodied_rl.rewards.card import JudgedEpisode
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.mujoco.vec_env import CONTROL_HZ
from embodied_rl.types import EpisodeSpec, Observation
from embodied_rl.utils.machine import pick_device
from embodied_rl.vec_env import VecEnv

_WORLDS = 8


def judge_rollouts(judge: Judge, options: CheckpointOptions, suite: str, episodes: int) -> list[JudgedEpisode]:
    """Let `options`' policy act in `episodes` episodes of held-out states of a suite, task by task, and judge them.

    The policy samples, as in training: greedy it would fail too rarely.
    """
    config = usual_env(suite, _WORLDS)
    tasks = load(suite, (), config)
    folder = policy_folder(options.checkpoint)
    policy = open_policy(options.checkpoint, pick_device("auto"), options.load_options(folder))
    check_observes(policy, tasks.suite, options.checkpoint)
    need_control_rate(read_provenance(folder), CONTROL_HZ, options.checkpoint)
    specs = interleaved(evaluation_specs(tasks.heldout_states, seed=0))[:episodes]
    judged: list[JudgedEpisode] = []
    with open_tasks(tasks, config, view_of(policy)) as env:
        for first in range(0, len(specs), _WORLDS):
            judged += _judge_some(judge, env, policy, specs[first : first + _WORLDS])
    return judged


def _judge_some(judge: Judge, env: VecEnv, policy: Policy, specs: Sequence[EpisodeSpec]) -> list[JudgedEpisode]:
    """One episode in each of the first envs; those whose simulator fails are left out."""
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
            progress, done = judge.progress(images, texts), judge.done(images, texts)
            judged.append(JudgedEpisode(progress.numpy(), done.numpy(), success[env_id]))
    return judged
