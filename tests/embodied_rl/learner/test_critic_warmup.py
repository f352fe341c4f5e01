"""PPO's critic learns alone until it sees, and no longer than it may."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.learner import Learner
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.learner.test_learner import setup

# With lambda 1 the returns do not depend on the values.
LEVEL = PPOConfig(critic_warmup_iterations=4, critic_warmup_level=0.9, gae_lambda=1.0, bootstrap_truncated=False)


def seeing(batch: RolloutBatch) -> RolloutBatch:
    """`batch` as if its critic had known the returns."""
    make_algorithm(LEVEL).prepare(batch, 2)
    assert batch.returns is not None
    batch.value = batch.returns.clone()
    return batch


def learns(learner: Learner, batch: RolloutBatch) -> tuple[bool, float | None]:
    """Whether an update on `batch` moves the policy, and what the metrics say of it."""
    before = learner.policy.state_dict()["head.weight"].clone()
    metrics = learner.update(batch)
    return not torch.equal(before, learner.policy.state_dict()["head.weight"]), metrics.get("train/critic_alone")


def test_the_policy_learns_from_the_update_after_the_critic_saw(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, LEVEL, lr=1e-2, ratio_tolerance=100.0)
    assert learns(learner, batch) == (False, 1.0)
    assert learns(learner, seeing(copy.copy(batch))) == (False, 1.0)
    assert learns(learner, batch) == (True, 0.0), "it has seen once, and that is enough"


def test_a_critic_that_saw_failures_alone_has_seen_nothing(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, LEVEL, lr=1e-2, ratio_tolerance=100.0)
    failures = copy.copy(batch)
    failures.reward = torch.zeros_like(batch.reward)
    assert learns(learner, seeing(failures)) == (False, 1.0)
    assert learns(learner, batch) == (False, 1.0), "it says 0 of them, which explains no return"


def test_it_waits_no_longer_than_the_warm_up(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, LEVEL, lr=1e-2, ratio_tolerance=100.0)
    assert [learns(learner, batch)[0] for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("whole", [True, False])
def test_a_resumed_run_knows_whether_the_critic_saw(tmp_path: Path, whole: bool) -> None:
    """The broken variant forgets it, and would leave the policy alone."""
    learner, batch = setup(tmp_path, LEVEL, lr=1e-2, ratio_tolerance=100.0)
    learner.update(seeing(copy.copy(batch)))
    state, weights = copy.deepcopy(learner.state_dict()), copy.deepcopy(learner.policy.state_dict())
    if not whole:
        del state["critic_ready"]
    resumed, _ = setup(tmp_path, LEVEL, lr=1e-2, ratio_tolerance=100.0)
    resumed.policy.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert learns(resumed, copy.copy(batch)) == (whole, float(not whole))
    learner.update(batch)
    same = [torch.equal(w, resumed.policy.state_dict()[name]) for name, w in learner.policy.state_dict().items()]
    assert all(same) == whole


def test_without_a_level_nothing_is_said(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, PPOConfig(critic_warmup_iterations=1), lr=1e-2, ratio_tolerance=100.0)
    assert learns(learner, seeing(copy.copy(batch))) == (False, None)
    assert not learner.algorithm.critic_ready


def test_a_level_that_does_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="how long it may last"):
        PPOConfig(critic_warmup_level=0.3)
    for level in (0.0, 1.5, float("nan")):
        with pytest.raises(UserError, match="must lie in"):
            PPOConfig(critic_warmup_level=level, critic_warmup_iterations=3)


@pytest.mark.parametrize("groups", [1, 2, 32])
def test_what_the_critic_explains_is_of_the_whole_batch_however_it_is_cut(tmp_path: Path, groups: int) -> None:
    """The mean over minibatches would be far below: returns of one episode, or of two that succeed, hardly differ."""
    learner, batch = setup(
        tmp_path, LEVEL, lr=1e-9, value_lr=1e-9, minibatch_size=None, minibatch_groups=groups, ratio_tolerance=100.0
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
    assert learner.algorithm.critic_ready
    assert not [name for name in metrics if not name.startswith("train/")]
