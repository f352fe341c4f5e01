"""How much a critic explains of a batch's returns, as an update tells it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.learner.test_learner import setup

# With lambda 1 the returns do not depend on the values.
PPO = PPOConfig(gae_lambda=1.0, bootstrap_truncated=False)


def seeing(batch: RolloutBatch) -> RolloutBatch:
    """`batch` as if its critic had known the returns."""
    make_algorithm(PPO).prepare(batch, 2)
    assert batch.returns is not None
    batch.value = batch.returns.clone()
    return batch


def test_a_critic_that_saw_failures_alone_has_seen_nothing(tmp_path: Path) -> None:
    """It says 0 of them, which explains no return."""
    learner, batch = setup(tmp_path, PPO, lr=1e-9, value_lr=1e-9, ratio_tolerance=100.0)
    batch.reward = torch.zeros_like(batch.reward)
    assert learner.update(seeing(batch))["train/explained_variance"] == 0.0


@pytest.mark.parametrize("groups", [1, 2, 32])
def test_it_is_of_the_whole_batch_however_it_is_cut(tmp_path: Path, groups: int) -> None:
    """The mean over minibatches would be far below: returns of one episode, or of two that succeed, hardly differ."""
    learner, batch = setup(
        tmp_path, PPO, lr=1e-9, value_lr=1e-9, minibatch_size=None, minibatch_groups=groups, ratio_tolerance=100.0
    )
    batch = seeing(batch)
    assert batch.returns is not None
    assert batch.value is not None
    batch.value += 0.03 * torch.randn(len(batch), generator=torch.Generator().manual_seed(0))
    unexplained = (batch.returns - batch.value).var(correction=0) / batch.returns.var(correction=0)
    assert unexplained < 0.1
    metrics = learner.update(batch)
    assert metrics["train/explained_variance"] == pytest.approx(1 - float(unexplained), abs=1e-5)
    assert metrics["train/return"] == pytest.approx(float(batch.returns.mean()), abs=1e-6)
    assert not [name for name in metrics if not name.startswith("train/")]
