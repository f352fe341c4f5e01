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
from embodied_rl.threads import Threads
from embodied_rl.types import RolloutBatch


def log_probs_of(
    policy: Policy, batch: RolloutBatch, index: Tensor, microbatch_rows: int, ranks: Ranks = ALONE,
    threads: Threads | None = None,
) -> Tensor:
    """float32 [r, L] on the CPU: log-probs of rows `index` (int64 [r], at least one).

    Each rank takes its share of the microbatches; threads: take these side by side.
    """

    def evaluate(piece: Tensor) -> Tensor:
        with torch.no_grad():  # of the thread that evaluates
            return evaluate_rows(policy, batch, piece).log_prob.cpu()

    pieces = ranks.cut(index, microbatch_rows)
    share = [piece for piece, _ in ranks.share(pieces)]
    parts = ranks.gather([evaluate(piece) for piece in share] if threads is None else threads.map(evaluate, share))
    return torch.cat([parts[number % ranks.size][number // ranks.size] for number in range(len(pieces))])


def recompute_log_probs(
    policy: Policy, batch: RolloutBatch, microbatch_rows: int, ranks: Ranks = ALONE, threads: Threads | None = None
) -> float:
    """Replace `batch.log_prob` in place; return the largest change of an executed term. threads: as above."""
    index = torch.arange(len(batch))
    new = log_probs_of(policy, batch, index, microbatch_rows, ranks, threads).to(batch.log_prob.device)
    drift = torch.where(batch.mask, (new - batch.log_prob).abs(), 0.0).max()
    batch.log_prob = new
    return float(drift)
