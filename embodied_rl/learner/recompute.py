"""Log-probs of the behaviour policy, computed again as the update computes them.

In bfloat16 the rollout's log-probs differ from the update's by rounding (0.01 in our measurements), because their
forward passes batch and order the same sums differently. Probability ratios then start off 1. The weights are still
those that acted, so the update's own numbers are what ratios must be taken against.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_rl.algorithms.rows import evaluate_rows
from embodied_rl.learner.ranks import ALONE, Ranks
from embodied_rl.policy import Policy
from embodied_rl.types import RolloutBatch


@torch.no_grad()
def log_probs_of(
    policy: Policy, batch: RolloutBatch, index: Tensor, microbatch_rows: int, ranks: Ranks = ALONE
) -> Tensor:
    """float32 [r, L] on the CPU: log-probs of rows `index` (int64 [r], at least one); each rank takes its share."""
    pieces = ranks.cut(index, microbatch_rows)
    parts = ranks.gather([evaluate_rows(policy, batch, piece).log_prob.cpu() for piece, _ in ranks.share(pieces)])
    return torch.cat([parts[number % ranks.size][number // ranks.size] for number in range(len(pieces))])


def recompute_log_probs(policy: Policy, batch: RolloutBatch, microbatch_rows: int, ranks: Ranks = ALONE) -> float:
    """Replace `batch.log_prob` in place; return the largest change of an executed term."""
    new = log_probs_of(policy, batch, torch.arange(len(batch)), microbatch_rows, ranks).to(batch.log_prob.device)
    drift = torch.where(batch.mask, (new - batch.log_prob).abs(), 0.0).max()
    batch.log_prob = new
    return float(drift)
