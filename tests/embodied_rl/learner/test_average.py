"""The mean of a policy's weights: its formula, and that nobody else notices it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import evaluate, run_once
from embodied_rl.learner.average import WeightAverage
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.policy import PolicyTraits
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit
from embodied_rl.types import EpisodeResult
from embodied_rl.utils.signals import Interrupted
from tests.embodied_rl.toy_run import JsonObserver, files_of, run, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

HELDOUT_STATES = {task: list(states)[:12] for task, states in HELDOUT.items()}


def _saved(folder: Path, iteration: int) -> dict[str, Tensor]:
    return load_file(folder / f"checkpoints/iter-{iteration:06d}/policy/model.safetensors")


def _curve(folder: Path) -> list[str]:
    """What training itself told."""
    return [line for line in (folder / "metrics.jsonl").read_text().splitlines() if "eval/" not in line]


class Line(nn.Linear):
    """A policy as far as a mean of weights sees it."""

    traits = PolicyTraits()


def _set(policy: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.fill_(value)


@pytest.mark.parametrize("updates", [1, 3])
def test_a_plain_mean_first_and_then_an_exponential_one(updates: int) -> None:
    policy = Line(2, 2)
    average = WeightAverage(cast(Any, policy), updates)
    seen, expected = [4.0, 1.0, -2.0, 8.0, 0.5], 0.0
    for count, value in enumerate(seen, 1):
        _set(policy, value)
        average.add()
        expected = sum(seen[:count]) / count if count <= updates else expected + (value - expected) / updates
        with average.in_place():
            assert torch.allclose(policy.weight, torch.tensor(expected))
        assert (policy.weight == value).all()


def test_before_any_update_it_is_the_first_weights() -> None:
    policy = Line(3, 2)
    first = policy.weight.detach().clone()
    with WeightAverage(cast(Any, policy), 4).in_place():
        assert torch.equal(policy.weight, first)


def test_the_mean_is_finer_than_the_weights_and_leaves_them_and_frozen_ones_alone() -> None:
    policy = Line(3, 2).to(torch.bfloat16)
    policy.bias.requires_grad_(False)
    bias = policy.bias.detach().clone()
    average = WeightAverage(cast(Any, policy), 1000)
    for value in (256.0, 256.0, 256.0, 258.0):  # neighbours in bfloat16: a mean in it would never move
        _set(policy, value)
        average.add()
    (mean,) = [tensor for name, tensor in average.state_dict()["mean"].items() if name != "n_averaged"]
    assert mean.dtype == torch.float32
    assert mean.unique().tolist() == [256.5]
    assert (policy.weight == 258.0).all()
    with pytest.raises(Interrupted), average.in_place():
        raise Interrupted("in the middle of an evaluation")
    assert (policy.weight == 258.0).all()
    assert torch.equal(policy.bias, bias)


def test_the_critic_of_a_policy_with_running_statistics_keeps_its_values() -> None:
    """What it predicts does not change with its units; a mean of weights in several units would be far off."""
    policy = MLPPolicy.fresh(MLPModelConfig(observation_dim=3, action_dim=1), seed=0)
    average = WeightAverage(policy, 4)
    observed = torch.linspace(-1, 1, 24).view(8, 3)
    for returns in (1.0, 30.0, 900.0):
        policy.model.update_normalizer(observed, returns * torch.linspace(-1, 3, 8))
        with torch.no_grad():
            policy.model.log_std.add_(0.3)
        average.add()
    seen = policy.model.normalised(observed)
    value = policy.model.value(seen)
    std = policy.model.log_std.detach().clone()
    with average.in_place():
        assert torch.equal(policy.model.value(seen), value)
        torch.testing.assert_close(policy.model.log_std, std - 0.3)
    older = average.state_dict()
    older["newest"] = [*older["newest"], *policy.model.critic.parameters()]
    with pytest.raises(UserError, match="running mean of other weights"):
        average.load_state_dict(older)


@pytest.mark.parametrize(
    ("scheduler", "groups"),
    [
        (SerialConfig(), None),
        (PipelinedConfig(), 16),
        (PipelinedConfig(env_groups=2), 16),
        (PipelinedConfig(), 64),  # whose actor is the learner's own policy
    ],
)
def test_training_does_not_notice_and_the_mean_is_evaluated_and_saved(
    tmp_path: Path, scheduler: SchedulerConfig, groups: int | None
) -> None:
    found: list[ToyPolicy] = []
    for name, updates in (("newest", 0), ("mean", 3)):
        policy = ToyPolicy()
        by = {"minibatch_size": None, "minibatch_groups": groups} if groups is not None else {}
        settings = settings_of(PPOConfig(gamma=0.9), 6, average_updates=updates, **by)  # type: ignore[arg-type]
        settings = dataclasses.replace(
            settings, scheduler=scheduler, checkpoint=dataclasses.replace(settings.checkpoint, every=1, keep=6)
        )
        outcome = train(
            tmp_path / name,
            ToyEnv(16),
            policy,
            files_of(policy),
            settings,
            TaskSplit(TASKS, HELDOUT),
            JsonObserver(tmp_path / name / "metrics.jsonl"),
            RunOptions(resume_command=""),
        )
        found.append(policy)
        saved = ToyPolicy()
        saved.load_state_dict(_saved(tmp_path / name, 6))
        assert evaluate(ToyEnv(16), saved, evaluation_specs(HELDOUT_STATES, 3), "greedy") == outcome.after
    assert _curve(tmp_path / "newest") == _curve(tmp_path / "mean")
    newest = [_saved(tmp_path / "newest", iteration) for iteration in range(1, 7)]
    for name in newest[0]:
        mean = torch.zeros(())
        for count, weights in enumerate(newest, 1):
            mean = mean + (weights[name] - mean) / min(count, 3)
        torch.testing.assert_close(_saved(tmp_path / "mean", 6)[name], mean)
        assert torch.equal(found[1].state_dict()[name], _saved(tmp_path / "mean", 6)[name])
    assert not torch.equal(found[0].head.weight, found[1].head.weight)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_resumed_run_ends_the_same(tmp_path: Path, algorithm: str) -> None:
    run(tmp_path / "whole", algorithm, average_updates=3)
    run(tmp_path / "halves", algorithm, average_updates=3, iterations=4)
    policy = run(tmp_path / "halves", algorithm, average_updates=3, resume=True)[1]
    one, two = (_saved(tmp_path / name, 6) for name in ("whole", "halves"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(one[name], policy.state_dict()[name]) for name in one)
    whole, halves = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "halves"))
    assert whole == halves


def test_stopped_in_the_middle_of_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint that is saved then has both, the mean and the newest weights."""
    run(tmp_path / "whole", "ppo", average_updates=3)
    with monkeypatch.context() as patch:
        calls = iter(range(10))

        def stopped(*arguments: Any, **options: Any) -> dict[int, EpisodeResult]:
            if next(calls) == 1:  # after 4 updates; the first one is before any
                raise Interrupted("Ctrl-C")
            return run_once(*arguments, **options)

        patch.setattr("embodied_rl.training.ranked.run_once", stopped)
        with pytest.raises(Interrupted):
            run(tmp_path / "stopped", "ppo", average_updates=3)
    run(tmp_path / "stopped", "ppo", average_updates=3, resume=True)
    whole, stopped_run = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "stopped"))
    assert whole == stopped_run


def test_switched_off_it_goes_on_with_the_newest_weights_and_on_from_there(tmp_path: Path) -> None:
    run(tmp_path / "without", "ppo")
    for name, first, then in (("off", 3, 0), ("on", 0, 3)):
        run(tmp_path / name, "ppo", average_updates=first, iterations=4)
        run(tmp_path / name, "ppo", average_updates=then, resume=True)
        assert _curve(tmp_path / name) == _curve(tmp_path / "without")
    newest = torch.load(tmp_path / "on/checkpoints/iter-000006/trainer.pt", weights_only=True)["average"]["newest"]
    names = [name for name, _ in ToyPolicy(with_value=True).named_parameters()]
    own = dict(zip(names, newest, strict=True))
    assert all(torch.equal(weights, _saved(tmp_path / "off", 6)[name]) for name, weights in own.items())
    assert not torch.equal(_saved(tmp_path / "on", 6)["head.weight"], own["head.weight"])


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(UserError, match=r"--learner\.average-updates must not be negative, got -1"):
        LearnerConfig(average_updates=-1)
