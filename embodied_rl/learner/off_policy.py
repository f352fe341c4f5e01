"""Off-policy correction: log-probs and values of stale rows under the current policy, and their effective sample size.

It also recomputes log-probs of fresh rows in bfloat16. There those of the rollout differ from the update's by rounding
(0.01, 0.1 with 7B), because forward passes batch and order the same sums differently.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embodied_rl.algorithms.config import RatioLevel
from embodied_rl.algorithms.losses import MAX_IMPORTANCE, effective_sample_size, importance, ratio_stats, unit_mask
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.learner.recompute import evaluate_again
from embodied_rl.policy import Policy
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.threads import WorkerPool

DRIFT = "train/log_prob_drift"
"""Metric: the largest change of a fresh row's log-prob, `importance_correction` returns it."""


def importance_correction(
    batch: RolloutBatch,
    policy: Policy,
    microbatch_size: int,
    ranks: Collectives = SINGLE_PROCESS,
    threads: WorkerPool | None = None,
    *,
    all_rows: bool = False,
) -> float:
    """Give stale rows the log-probs and values of `policy`, of version `batch.version`, before an update.

    The log of the ratio of new to old probabilities goes into `batch.log_importance`. The `final_value` of a truncated
    episode stays the older critic's, because its last observation is not kept.

    Args:
        all_rows: recompute log-probs of fresh rows too (`learner.recompute_old_log_probs`).
        threads: as for `evaluate_again`.

    Returns:
        The largest change of an executed log-prob of a fresh row, 0 if there are none.
    """
    stale = stale_rows(batch)
    index = torch.arange(len(batch)) if all_rows else stale
    if not len(index):
        return 0.0
    again, value = evaluate_again(policy, batch, index, microbatch_size, ranks, threads)
    change = again - batch.log_prob[index]
    old = torch.isin(index, stale)
    if len(stale):
        batch.log_importance = torch.zeros_like(batch.log_prob)
        batch.log_importance[stale] = change[old]
    if batch.value is not None and len(stale):
        assert value is not None, "the policy acted with a critic and now has none"
        batch.value = batch.value.index_copy(0, stale, value[old])
    batch.log_prob = batch.log_prob.index_copy(0, index, again)
    fresh = batch.mask[index] & ~old[:, None]
    return float(torch.where(fresh, change.abs(), 0.0).max())


def stale_rows(batch: RolloutBatch) -> Tensor:
    """Indices of the rows that older policies acted on; int64."""
    return torch.zeros(0, dtype=torch.int64) if batch.row_version is None else _lag(batch).nonzero()[:, 0]


def _lag(batch: RolloutBatch) -> Tensor:
    assert batch.row_version is not None
    return batch.version - batch.row_version


def ess_ratio(parts: Sequence[RolloutBatch], index: Tensor | None = None) -> float:
    """Effective sample size ratio of the corrected rows of `parts`; index: only these rows of each (int64 [r], r > 0).

    It is taken from the ratios of whole decisions, at any ratio level: those of single tokens are all close to 1 even
    when a policy has moved far.
    """
    rows = slice(None) if index is None else index
    found = [(part.log_importance, part.mask[rows]) for part in parts]
    sums = [
        ratio_stats(torch.zeros(mask.shape) if terms is None else terms[rows].double(), mask) for terms, mask in found
    ]
    return effective_sample_size(*torch.stack(sums).double().sum(dim=0).tolist())


def stale_metrics(batch: RolloutBatch, level: RatioLevel, terms_per_step: int) -> dict[str, float]:
    """Metrics of a corrected batch; none if no row is stale."""
    stale = stale_rows(batch)
    if not len(stale):
        return {}
    assert batch.log_importance is not None
    lag = _lag(batch).double()
    ratio = importance(batch.log_importance, batch.mask, level, terms_per_step)
    valid = unit_mask(batch.mask, level, terms_per_step)
    return {
        "train/ess": ess_ratio([batch]),
        "train/ess_stale": ess_ratio([batch], stale),
        "train/stale": len(stale) / len(batch),
        "train/staleness": float(lag.mean()),
        "train/staleness_max": float(lag.max()),
        "train/importance_truncated": float((ratio[valid] > MAX_IMPORTANCE).double().mean()),
    }
