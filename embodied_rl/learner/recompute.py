"""Evaluating recorded rows again under the current policy, as the update does."""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_rl.algorithms.base import evaluate_rows
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.policy import Policy
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.threads import WorkerPool


def evaluate_again(
    policy: Policy,
    batch: RolloutBatch,
    index: Tensor,
    microbatch_size: int,
    ranks: Collectives = SINGLE_PROCESS,
    threads: WorkerPool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs float32 [r, L] and values float32 [r] (None without a critic) of rows `index` (int64 [r], not empty).

    Both on the CPU. Each process takes its share of the microbatches. threads: take these side by side.
    """

    def evaluate(piece: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():  # of the thread that evaluates
            out = evaluate_rows(policy, batch, piece)
        return out.log_prob.cpu(), None if out.value is None else out.value.cpu()

    pieces = ranks.cut(index, microbatch_size)
    share = [piece for piece, _ in ranks.shard(pieces)]
    parts = ranks.gather([evaluate(piece) for piece in share] if threads is None else threads.map(evaluate, share))
    found = [parts[number % ranks.size][number // ranks.size] for number in range(len(pieces))]
    values = [value for _, value in found if value is not None]
    return torch.cat([log_prob for log_prob, _ in found]), torch.cat(values) if values else None
