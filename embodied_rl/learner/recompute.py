"""Log-probs of the behaviour policy, computed again as the update computes them.

In bfloat16 the rollout's log-probs differ from the update's by rounding (0.01 in our measurements), because their
forward passes batch and order the same sums differently. Probability ratios then start off 1. The weights are still
those that acted, so the update's own numbers are what ratios must be taken against.
"""

from __future__ import annotations

import torch

from embodied_rl.algorithms.rows import evaluate_rows
from embodied_rl.policy import Policy
from embodied_rl.types import RolloutBatch


@torch.no_grad()
def recompute_log_probs(policy: Policy, batch: RolloutBatch, microbatch_rows: int) -> float:
    """Replace `batch.log_prob` in place; return the largest change of an executed term."""
    new = torch.cat([
        evaluate_rows(policy, batch, index).log_prob.to(batch.log_prob.device)
        for index in torch.arange(len(batch)).split(microbatch_rows)
    ])
    drift = torch.where(batch.mask, (new - batch.log_prob).abs(), 0.0).max()
    batch.log_prob = new
    return float(drift)
