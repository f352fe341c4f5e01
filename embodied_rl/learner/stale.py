"""Rows of older policies: what the policy of now says of them, and how much they are worth."""

from __future__ import annotations

from embodied_rl.algorithms.losses import MAX_IMPORTANCE, effective_share, importance, unit_mask
from embodied_rl.algorithms.rows import Algorithm
from embodied_rl.learner.ranks import ALONE, Ranks
from embodied_rl.learner.recompute import evaluate_again
from embodied_rl.policy import Policy
from embodied_rl.threads import Threads
from embodied_rl.types import RolloutBatch


def correct(
    batch: RolloutBatch, policy: Policy, algorithm: Algorithm, microbatch_rows: int, ranks: Ranks = ALONE,
    threads: Threads | None = None,
) -> dict[str, float]:
    """Give rows of older policies the log-probs and values of `policy`, of version `batch.version`, before an update.

    The ratio of old and new probabilities goes into `log_importance`. Values must be those of the critic that is about
    to learn: advantages are taken from them, and the loss keeps the critic near them. The `final_value` of an episode
    whose time ran out stays the older critic's, because nobody keeps the last picture. Returns metrics, among them
    'train/ess', the effective sample size as a share of the batch, by the ratios of whole decisions whatever the loss
    cuts them into: those of single tokens are all close to 1 when a policy has moved far. Without stale rows nothing
    changes and there are none. threads: as for `evaluate_again`.
    """
    if batch.row_version is None or bool((batch.row_version == batch.version).all()):
        return {}
    lag = batch.version - batch.row_version
    stale = lag.nonzero()[:, 0]
    again, value = evaluate_again(policy, batch, stale, microbatch_rows, ranks, threads)
    log_prob = batch.log_prob.index_copy(0, stale, again)
    if batch.value is not None:
        assert value is not None, "the policy acted with a critic and now has none"
        batch.value = batch.value.index_copy(0, stale, value)
    batch.log_importance, batch.log_prob = log_prob - batch.log_prob, log_prob
    ratio = importance(batch.log_importance, batch.mask, algorithm.ratio_level, policy.terms_per_step)
    valid = unit_mask(batch.mask, algorithm.ratio_level, policy.terms_per_step)
    decision = importance(batch.log_importance, batch.mask, "chunk", policy.terms_per_step)
    return {
        "train/ess": effective_share(decision, batch.mask.any(dim=1, keepdim=True)),
        "train/staleness": float(lag.double().mean()),
        "train/staleness_max": float(lag.max()),
        "train/importance_truncated": float((ratio[valid] > MAX_IMPORTANCE).double().mean()),
    }
