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

    Both on the CPU. Each rank takes the rows that it has. threads: take microbatches side by side.
    """

    def evaluate(piece: Tensor) -> tuple[Tensor, Tensor | None]:
        with torch.no_grad():  # of the thread that evaluates
            out = evaluate_rows(policy, batch, piece)
        return out.log_prob.cpu(), None if out.value is None else out.value.cpu()

    own = ranks.own(batch, index)
    share = ranks.pad(batch, index, microbatch_size, own.split(microbatch_size))
    pieces = [piece for piece, _ in share]
    found = [evaluate(piece) for piece in pieces] if threads is None else threads.map(evaluate, pieces)
    parts = ranks.gather([part for part, (_, counts) in zip(found, share, strict=True) if counts])
    every = [part for rank in parts for part in rank]
    log_prob, values = torch.cat([part for part, _ in every]), [value for _, value in every if value is not None]
    value = torch.cat(values) if values else None
    place = ranks.owners(batch, index).argsort(stable=True).argsort()  # from rank after rank to the batch's order
    return log_prob[place], None if value is None else value[place]
