"""What the policy that is about to learn makes of rows that others, or it, acted on: evaluated as the update does.

`recompute_log_probs` is for the rows of the very weights that learn; `stale.correct` for those of older ones.

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


def evaluate_again(
    policy: Policy, batch: RolloutBatch, index: Tensor, microbatch_rows: int, ranks: Ranks = ALONE,
    threads: Threads | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs float32 [r, L] and values float32 [r] (None without a critic) of rows `index` (int64 [r], not empty).

    Both on the CPU. Each rank takes its share of the microbatches; threads: take these side by side.
    """

    def evaluate(piece: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():  # of the thread that evaluates
            out = evaluate_rows(policy, batch, piece)
        return out.log_prob.cpu(), None if out.value is None else out.value.cpu()

    pieces = ranks.cut(index, microbatch_rows)
    share = [piece for piece, _ in ranks.share(pieces)]
    parts = ranks.gather([evaluate(piece) for piece in share] if threads is None else threads.map(evaluate, share))
    found = [parts[number % ranks.size][number // ranks.size] for number in range(len(pieces))]
    values = [value for _, value in found if value is not None]
    return torch.cat([log_prob for log_prob, _ in found]), torch.cat(values) if values else None


def recompute_log_probs(
    policy: Policy, batch: RolloutBatch, microbatch_rows: int, ranks: Ranks = ALONE, threads: Threads | None = None
) -> float:
    """Replace `batch.log_prob` in place; return the largest change of an executed term. threads: as above."""
    index = torch.arange(len(batch))
    log_prob, _ = evaluate_again(policy, batch, index, microbatch_rows, ranks, threads)
    new = log_prob.to(batch.log_prob.device)
    drift = torch.where(batch.mask, (new - batch.log_prob).abs(), 0.0).max()
    batch.log_prob = new
    return float(drift)
