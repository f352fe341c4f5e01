"""The mean of a policy's weights: its formula, and that nobody else notices it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.errors import UserError
from embodied_rl.interrupt import Interrupted
from embodied_rl.learner.average import WeightAverage
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.runner import train
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from tests.embodied_rl.toy_run import JsonObserver, files_of, run, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy


def _saved(folder: Path, iteration: int) -> dict[str, Tensor]:
    return load_file(folder / f"checkpoints/iter-{iteration:06d}/policy/model.safetensors")


def _curve(folder: Path) -> list[str]:
    """What training itself told."""
    return [line for line in (folder / "metrics.jsonl").read_text().splitlines() if "eval/" not in line]


def _set(policy: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.fill_(value)


@pytest.mark.parametrize("updates", [1, 3])
def test_a_plain_mean_first_and_then_an_exponential_one(updates: int) -> None:
    policy = nn.Linear(2, 2)
    average = WeightAverage(policy, updates)
    seen, expected = [4.0, 1.0, -2.0, 8.0, 0.5], 0.0
    for count, value in enumerate(seen, 1):
        _set(policy, value)
        average.add()
        expected = sum(seen[:count]) / count if count <= updates else expected + (value - expected) / updates
        with average.in_place():
            assert torch.allclose(policy.weight, torch.tensor(expected))
        assert (policy.weight == value).all()


def test_before_any_update_it_is_the_first_weights() -> None:
    policy = nn.Linear(3, 2)
    first = policy.weight.detach().clone()
    with WeightAverage(policy, 4).in_place():
        assert torch.equal(policy.weight, first)


def test_the_mean_is_finer_than_the_weights_and_leaves_them_and_frozen_ones_alone() -> None:
    policy = nn.Linear(3, 2).to(torch.bfloat16)
    policy.bias.requires_grad_(False)
    bias = policy.bias.detach().clone()
    average = WeightAverage(policy, 1000)
    for value in (256.0, 256.0, 256.0, 258.0):  # neighbours in bfloat16: a mean in it would never move
        _set(policy, value)
        average.add()
    assert average.state_dict()["mean"]["weight"].unique().tolist() == [256.5]
    assert (policy.weight == 258.0).all()
    with pytest.raises(Interrupted), average.in_place():
        raise Interrupted("in the middle of an evaluation")
    assert (policy.weight == 258.0).all()
    assert torch.equal(policy.bias, bias)
    assert list(average.state_dict()["mean"]) == ["weight"]


@pytest.mark.parametrize("scheduler", [
    SerialConfig(), PipelinedConfig(), PipelinedConfig(stages=2),
])  # fmt: skip
def test_training_does_not_notice_and_the_saved_policy_is_the_mean(tmp_path: Path, scheduler: SchedulerConfig) -> None:
    found: list[ToyPolicy] = []
    for name, updates in (("newest", 0), ("mean", 3)):
        policy = ToyPolicy()
        groups = {"minibatch_rows": None, "minibatch_groups": 16} if isinstance(scheduler, PipelinedConfig) else {}
        settings = settings_of(PPOConfig(gamma=0.9), 6, average_updates=updates, **groups)  # type: ignore[arg-type]
        settings = dataclasses.replace(
            settings, scheduler=scheduler, checkpoint=dataclasses.replace(settings.checkpoint, every=1, keep=6)
        )
        train(
            tmp_path / name, ToyEnv(16), policy, files_of(policy), settings, TASKS, HELDOUT,
            JsonObserver(tmp_path / name / "metrics.jsonl"), resume_command="",
        )  # fmt: skip
        found.append(policy)
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
    # evaluated at the end of each half
    whole, halves = (_curve(tmp_path / name) for name in ("whole", "halves"))
    assert whole == halves


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(UserError, match=r"--learner\.average-updates must not be negative, got -1"):
        LearnerConfig(average_updates=-1)
