"""Rows of older policies: what the policy of now says of them, and how much they are worth."""

from __future__ import annotations

from embodied_rl.algorithms.losses import MAX_IMPORTANCE, effective_share, importance, unit_mask
from embodied_rl.algorithms.rows import Algorithm
from embodied_rl.learner.ranks import ALONE, Ranks
from embodied_rl.learner.recompute import log_probs_of
from embodied_rl.policy import Policy
from embodied_rl.threads import Threads
from embodied_rl.types import RolloutBatch


def correct(
    batch: RolloutBatch, policy: Policy, algorithm: Algorithm, microbatch_rows: int, ranks: Ranks = ALONE,
    threads: Threads | None = None,
) -> dict[str, float]:
    """Give the rows of older policies the log-probs of `policy`, which has version `batch.version`, before an update.

    The ratio of the two goes into `log_importance`. Returns metrics, among them 'train/ess', the effective sample size
    as a share of the batch; without stale rows nothing changes and there are none. threads: as for `log_probs_of`.
    """
    if batch.row_version is None or bool((batch.row_version == batch.version).all()):
        return {}
    lag = batch.version - batch.row_version
    stale = lag.nonzero()[:, 0]
    log_prob = batch.log_prob.clone()
    log_prob[stale] = log_probs_of(policy, batch, stale, microbatch_rows, ranks, threads)
    batch.log_importance, batch.log_prob = log_prob - batch.log_prob, log_prob
    ratio = importance(batch.log_importance, batch.mask, algorithm.ratio_level, policy.terms_per_step)
    valid = unit_mask(batch.mask, algorithm.ratio_level, policy.terms_per_step)
    return {
        "train/ess": effective_share(ratio, valid),
        "train/staleness": float(lag.double().mean()),
        "train/staleness_max": float(lag.max()),
        "train/importance_truncated": float((ratio[valid] > MAX_IMPORTANCE).double().mean()),
    }
