"""Rows of older policies: what the policy of now says of them, and how much they are worth."""

from __future__ import annotations

import torch

from embodied_rl.algorithms.losses import MAX_IMPORTANCE, effective_share, importance, unit_mask
from embodied_rl.algorithms.rows import Algorithm, evaluate_rows
from embodied_rl.policy import Policy
from embodied_rl.types import RolloutBatch


def correct(batch: RolloutBatch, policy: Policy, algorithm: Algorithm, microbatch_rows: int) -> dict[str, float]:
    """Give the rows of older policies the log-probs of `policy`, which has version `batch.version`, before an update.

    The ratio of the two goes into `log_importance`. Returns metrics, among them 'train/ess', the effective sample size
    as a share of the batch; without stale rows nothing changes and there are none.
    """
    if batch.row_version is None or bool((batch.row_version == batch.version).all()):
        return {}
    lag = batch.version - batch.row_version
    stale = lag.nonzero()[:, 0]
    log_prob = batch.log_prob.clone()
    with torch.no_grad():
        for index in stale.split(microbatch_rows):
            log_prob[index] = evaluate_rows(policy, batch, index).log_prob.cpu()
    batch.log_importance, batch.log_prob = log_prob - batch.log_prob, log_prob
    ratio = importance(batch.log_importance, batch.mask, algorithm.ratio_level, policy.terms_per_step)
    valid = unit_mask(batch.mask, algorithm.ratio_level, policy.terms_per_step)
    return {
        "train/ess": effective_share(ratio, valid),
        "train/staleness": float(lag.double().mean()),
        "train/staleness_max": float(lag.max()),
        "train/importance_truncated": float((ratio[valid] > MAX_IMPORTANCE).double().mean()),
    }
