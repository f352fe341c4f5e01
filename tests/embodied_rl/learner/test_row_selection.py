"""Learning from a share of the rows: what is drawn, what it counts for, and that the gradient's expectation stays."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import join_batches, split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.row_selection import (
    UNIFORM_PART,
    RowSelection,
    inclusion_probabilities,
    row_scores,
    systematic_sample,
)
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.learner.ranked import Case, batch_of, by_groups, by_rows
from tests.embodied_rl.scheduler.toys import Setup, jitter, pipelined, serial
from tests.toy import ToyPolicy

GRPO = GRPOConfig(group_size=4, success_rate_range=None)
PPO = PPOConfig(gamma=0.9)
SCORES = st.lists(st.floats(0.0, 1e3), min_size=1, max_size=40).map(np.array)


@given(SCORES, st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=100)
def test_probabilities_add_up_and_no_row_counts_for_too_much(score: Any, share: float) -> None:
    found = inclusion_probabilities(score, share)
    assert found.sum() == pytest.approx(max(1.0, share * len(score)))
    assert found.max() <= 1.0
    assert found.min() >= UNIFORM_PART * share * (1 - 1e-9)
    order = np.argsort(score)
    assert (np.diff(found[order]) >= -1e-12).all()


@given(SCORES, st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=30)
def test_rows_are_drawn_as_often_as_their_probabilities_say(score: Any, share: float) -> None:
    """Over an even grid of the one uniform number that a draw takes."""
    probability, grid = inclusion_probabilities(score, share), 400
    counts = np.zeros(len(score))
    for step in range(grid):
        taken = systematic_sample(probability, (step + 0.5) / grid)
        assert abs(len(taken) - probability.sum()) < 1 + 1e-9
        assert len(taken) >= 1
        counts[taken] += 1
    np.testing.assert_allclose(counts / grid, probability, atol=2.0 / grid)


def prepared(config: AlgorithmConfig) -> RolloutBatch:
    batch = batch_of(Case(config, by_rows(25, 7)))
    make_algorithm(config).prepare(batch, ToyPolicy.terms_per_step)
    return batch


def test_all_rows_count_one_with_a_share_of_one() -> None:
    batch = prepared(PPO)
    index, factor = RowSelection(1.0, 0).take(batch, 0, 0, by_group=False)
    assert torch.equal(index, torch.arange(len(batch)))
    assert torch.equal(factor, torch.ones(len(batch)))


@pytest.mark.parametrize("config", [GRPO, PPO])
def test_draws_repeat_and_differ_by_seed_update_and_epoch(config: AlgorithmConfig) -> None:
    batch = prepared(config)
    draws = [
        RowSelection(0.5, seed).take(batch, iteration, epoch, by_group=False)[0].tolist()
        for seed, iteration, epoch in [(0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    ]
    assert draws[0] == draws[1]
    assert len({str(draw) for draw in draws}) == 4
    assert all(abs(len(draw) - len(batch) / 2) <= 1 for draw in draws)


def test_a_group_is_drawn_from_alike_whatever_it_comes_with() -> None:
    batch = prepared(GRPO)
    selection = RowSelection(0.3, 0)
    whole, _ = selection.take(batch, 2, 1, by_group=True)
    found, first = [], 0
    for group in split_groups(batch):
        make_algorithm(GRPO).prepare(group, ToyPolicy.terms_per_step)
        found.append(selection.take(group, 2, 1, by_group=True)[0] + first)
        first += len(group)
    assert torch.equal(torch.cat(found), whole)


def test_large_advantages_and_surprising_actions_come_first() -> None:
    batch = prepared(PPO)
    batch.advantage = advantage = torch.ones(len(batch))
    batch.log_prob = batch.log_prob * 0 + 3.0  # densities, all the same
    assert len(row_scores(batch).unique()) == 1
    advantage[5], batch.log_prob[7] = -9.0, -4.0
    assert sorted(row_scores(batch).topk(2).indices.tolist()) == [5, 7]
    advantage[:] = 0.0
    assert inclusion_probabilities(row_scores(batch).numpy(), 0.5) == pytest.approx(0.5)


def gradients(batch: RolloutBatch, config: AlgorithmConfig, options: LearnerConfig, seeds: int) -> Tensor:
    """Of one step, by seed [seeds, P]."""
    found = []
    for seed in range(seeds):
        policy = ToyPolicy()
        learner = Learner(policy, make_algorithm(config), options, seed=seed, dump_dir=Path())
        learner.optimizer_step.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)  # type: ignore[assignment]
        before = torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])
        learner.optimizer_step.config = replace(options, lr=1.0, value_lr=1.0)
        learner.update(copy.copy(batch))
        found.append(before - torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]))
    return torch.stack(found)


def deviation(batch: RolloutBatch, config: AlgorithmConfig, options: LearnerConfig, seeds: int = 120) -> float:
    """Squared distance of the mean gradient of half the rows from that of all, in units of what chance makes of it."""
    options = replace(options, max_grad_norm=1e9)
    (full,) = gradients(batch, config, options, 1)
    half = gradients(batch, config, replace(options, row_share=0.5), seeds)
    return float((half.mean(0) - full).square().sum() / (half.var(0).sum() / seeds))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (replace(PPO, epochs=1), by_rows(10**6, 1000)),
        (replace(PPO, epochs=1), by_groups(10**6, 1000)),
        (GRPO, by_groups(10**6, 1000)),
    ],
    ids=["ppo by rows", "ppo by groups", "grpo by groups"],
)
def test_the_gradient_is_unbiased(config: AlgorithmConfig, options: LearnerConfig, monkeypatch: Any) -> None:
    batch = batch_of(Case(config, options, episodes=8))
    assert deviation(batch, config, options) < 2.0

    def unweighted(self: RowSelection, *args: Any, **options: Any) -> tuple[Tensor, Tensor]:
        index, factor = take(self, *args, **options)
        return index, (factor > 0).float() / self.share if self.share < 1 else factor

    take = RowSelection.take
    monkeypatch.setattr(RowSelection, "take", unweighted)
    assert deviation(batch, config, options) > 4.0


@pytest.mark.parametrize("config", [GRPO, PPO])
@pytest.mark.parametrize("options", [by_rows(25, 7), by_groups(3, 10)], ids=["rows", "groups"])
def test_as_many_steps_with_half_the_rows_and_a_resumed_learner_goes_on_exactly(
    config: AlgorithmConfig, options: LearnerConfig, tmp_path: Path
) -> None:
    batch = batch_of(Case(config, options))

    def learner(policy: ToyPolicy, share: float) -> Learner:
        options_ = replace(options, row_share=share, ratio_tolerance=1e9)
        return Learner(policy, make_algorithm(config), options_, seed=0, dump_dir=tmp_path)

    policy = ToyPolicy()
    whole = learner(policy, 0.5)
    seen: list[int] = []
    original = whole.algorithm.loss
    whole.algorithm.loss = lambda model, rows, iteration: (  # type: ignore[method-assign]
        seen.extend(rows.index.tolist()) or original(model, rows, iteration)
    )
    one, full = whole.update(copy.copy(batch)), learner(ToyPolicy(), 1.0).update(copy.copy(batch))
    assert one["train/steps"] == full["train/steps"]
    assert full["train/num_samples"] == len(batch)
    assert one["train/num_samples"] == len(seen) / whole.algorithm.epochs
    assert abs(one["train/num_samples"] / len(batch) - 0.5) < 0.1
    later = ToyPolicy()
    later.load_state_dict(policy.state_dict())
    resumed = learner(later, 0.5)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert whole.update(copy.copy(batch)) == resumed.update(copy.copy(batch))
    assert all(torch.equal(policy.state_dict()[name], tensor) for name, tensor in later.state_dict().items())


@pytest.mark.parametrize("config", [GRPO, PPO])
def test_a_stream_learns_the_rows_that_serial_learns(config: AlgorithmConfig, tmp_path: Path) -> None:
    learner = LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=2, microbatch_size=24, row_share=0.4)
    setup = Setup(config, learner=learner)
    one, two = serial(setup, tmp_path), pipelined(setup, tmp_path, pause=jitter(1))
    for left, right in zip(one.metrics, two.metrics, strict=True):
        assert right == pytest.approx(left, rel=1e-4, abs=1e-6)
    for name, tensor in one.weights.items():
        torch.testing.assert_close(two.weights[name], tensor, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("config", [GRPO, PPO])
@pytest.mark.parametrize("options", [by_rows(2, 1), by_groups(1, 1)], ids=["rows", "groups"])
def test_very_few_rows(config: AlgorithmConfig, options: LearnerConfig, tmp_path: Path) -> None:
    batch = join_batches(list(split_groups(batch_of(Case(config, options, episodes=4)))))
    learner = Learner(ToyPolicy(), make_algorithm(config), replace(options, row_share=0.01), seed=0, dump_dir=tmp_path)
    assert learner.update(batch)["train/num_samples"] >= 1


@pytest.mark.parametrize("share", [0.0, 1.5, float("nan")])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(UserError, match=r"--learner.row-share must lie in \(0, 1\]"):
        LearnerConfig(row_share=share)
