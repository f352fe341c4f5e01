"""Episodes in which a person helped: counted as failed for the policy and apart as helped, and never learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.losses import mean_entropy, unit_weights
from embodied_rl.rollout.adaptive import SuccessTracker
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.recording import RecordingVecEnv
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.sim.wrappers.takeover import Expert, ExpertTakeover, TakeoverRule
from embodied_rl.training.on_policy import RunOptions, TaskSplit, train
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv
from tests.embodied_rl.scheduler.test_collector import collector
from tests.embodied_rl.toy_run import JsonObserver, files_of, settings_of
from tests.toy import CHUNK, HELDOUT, TASKS, ToyEnv, ToyPolicy


def with_expert(num_envs: int, rule: TakeoverRule) -> ExpertTakeover:
    env = ToyEnv(num_envs)

    def expert(env_id: int, spec: EpisodeSpec) -> Expert:
        return lambda: 4 * (env._goal[env_id] - env._position[env_id])

    return ExpertTakeover(env, rule, expert)


def test_an_episode_with_help_counts_as_failed_and_apart() -> None:
    alone = collector(ToyEnv(5), ToyPolicy()).collect(0)
    batch = collector(with_expert(5, TakeoverRule("late", after=3)), ToyPolicy()).collect(0)  # type: ignore[arg-type]
    helped = [result for result in batch.episodes if result.human_steps]
    assert len(helped) > 5
    assert all(not result.success and result.reward == 0 for result in helped)
    reached = [result for result in helped if result.helped_success]
    assert len(reached) > 5
    assert all(result.helped_success == result.terminated for result in helped)
    assert all(not result.helped_success for result in batch.episodes if not result.human_steps)
    won = {result.spec.episode_id for result in alone.episodes if result.success and result.num_steps <= 3}
    assert {result.spec.episode_id for result in batch.episodes if result.success} == won
    assert batch.info["rollout/success"] == len(won) / len(batch.episodes)
    assert batch.info["rollout/success_with_help"] == (len(won) + len(reached)) / len(batch.episodes)
    assert batch.info["rollout/helped"] == len(helped) / len(batch.episodes)
    assert batch.info["rollout/human_steps"] == sum(result.human_steps for result in helped)
    assert "rollout/helped" not in alone.info


def test_a_persons_steps_are_not_the_policys_rows() -> None:
    batch = collector(with_expert(5, TakeoverRule("late", after=3)), ToyPolicy()).collect(0)  # type: ignore[arg-type]
    terms = batch.mask.sum(dim=1) // 2
    for number, result in enumerate(batch.episodes):
        rows = batch.episode == number
        assert int(rows.sum()) == result.num_decisions
        assert int(terms[rows].sum()) == result.num_steps - result.human_steps == min(result.num_steps, 3)
        assert not batch.reward[rows].any() or result.success


def test_a_recording_has_every_step_of_the_expert_and_says_whose_it_is() -> None:
    env = RecordingVecEnv(with_expert(5, TakeoverRule("late", after=3)))
    specs = iter(EpisodeSpec(i, list(TASKS)[i % 2], i, seed=50 + i) for i in range(10))
    seen = 0
    for trajectory in EnvRunner(env, ToyPolicy(seed=3), Profiler(), record=True).run(
        lambda: next(specs, None), lambda spec, cause: spec, "sample"
    ):
        result, episode = trajectory.result, env.take(trajectory.result.spec)
        assert episode.human == [step >= 3 for step in range(result.num_steps)]
        assert episode.success == (result.success or result.helped_success)
        position, action = np.stack(episode.proprio), np.stack(episode.action)
        moved = np.clip(position[:-1] + np.float32(0.25) * action[:-1], -1, 1)
        np.testing.assert_allclose(position[1:], moved, atol=1e-6)
        assert not any(episode.reward[3:])
        seen += result.human_steps
    assert seen > 10


def test_help_is_no_success_for_the_adaptive_sampler() -> None:
    spec = EpisodeSpec(0, "toy/reach", 0, 1)
    helped = EpisodeResult(spec, False, True, False, 0.0, 2, 4, human_steps=2, helped_success=True)
    tracker = SuccessTracker(TASKS, 0.25).after([helped])
    assert tracker.counts[0][0].tolist() == [0, 1]


def test_rows_that_are_a_persons_have_no_weight_and_no_nan() -> None:
    mask = torch.tensor([[True, True], [False, False], [True, False], [False, False]])
    episode = torch.tensor([0, 0, 1, 2])
    for norm in ("token", "trajectory"):
        weight = unit_weights(mask, episode, norm)
        assert weight.sum() == pytest.approx(1)
        assert not weight[~mask].any()
        assert torch.isfinite(mean_entropy(torch.ones(4, 2), mask, weight.sum(dim=1)))


def trained(folder: Path, env: VecEnv, scheduler: SchedulerConfig) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    policy = ToyPolicy()
    by_groups: dict[str, Any] = {"minibatch_size": None, "minibatch_groups": 16}
    settings = replace(settings_of(PPOConfig(gamma=0.9, entropy_coef=0.01), 2, **by_groups), scheduler=scheduler)
    split, observer = TaskSplit(TASKS, HELDOUT), JsonObserver(folder / "metrics.jsonl")
    train(folder, env, policy, files_of(policy), settings, split, observer, RunOptions())
    return policy.state_dict()


def test_weights_are_as_without_where_nobody_helps_and_the_same_under_every_schedule(tmp_path: Path) -> None:
    nobody, late = TakeoverRule("share", share=0.0), TakeoverRule("late", after=2 * CHUNK + 1)
    plain = trained(tmp_path / "plain", ToyEnv(8), SerialConfig())
    wrapped = trained(tmp_path / "wrapped", with_expert(8, nobody), SerialConfig())
    serial = trained(tmp_path / "serial", with_expert(8, late), SerialConfig())
    pipelined = trained(tmp_path / "pipelined", with_expert(12, late), PipelinedConfig(env_groups=3))
    for name, values in plain.items():
        assert torch.equal(values, wrapped[name]), name
        assert torch.equal(serial[name], pipelined[name]), name
        assert torch.isfinite(serial[name]).all(), name
    assert any(not torch.equal(values, serial[name]) for name, values in plain.items())
