"""Rows of older policies: what the policy of now says of them, and how much they are worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, pairwise

import torch

from embodied_rl.algorithms.config import RatioLevel
from embodied_rl.algorithms.losses import MAX_IMPORTANCE, effective_share, importance, unit_mask
from embodied_rl.algorithms.rows import Algorithm
from embodied_rl.learner.ranks import ALONE, Ranks
from embodied_rl.learner.recompute import evaluate_again
from embodied_rl.policy import Policy
from embodied_rl.threads import Threads
from embodied_rl.types import RolloutBatch


class Correction:
    """Gives rows of older policies the log-probs and values of `policy`, of version `batch.version`, before an update.

    The ratio of old and new probabilities goes into `log_importance`. Values must be those of the critic that is about
    to learn: advantages are taken from them, and the loss keeps the critic near them. The `final_value` of an episode
    whose time ran out stays the older critic's, because nobody keeps the last picture. All is written into the batch's
    own memory, so that views of it (`split_groups`) have it too. threads: as for `evaluate_again`.
    """

    def __init__(
        self, batch: RolloutBatch, policy: Policy, algorithm: Algorithm, microbatch_rows: int, ranks: Ranks = ALONE,
        threads: Threads | None = None,
    ) -> None:
        self._batch = batch
        self._policy = policy
        self._level: RatioLevel = algorithm.ratio_level
        self._microbatch_rows = microbatch_rows
        self._ranks = ranks
        self._threads = threads
        lag = torch.zeros(0) if batch.row_version is None else batch.version - batch.row_version
        self.stale = lag.nonzero()[:, 0]
        """Numbers of the rows that older policies acted on; int64."""
        self._lag = lag.double()
        if len(self.stale):
            batch.log_importance = torch.zeros_like(batch.log_prob)

    def apply(self, first: int, end: int) -> None:
        """Correct the stale rows among first, ..., end - 1."""
        batch = self._batch
        index = self.stale[(self.stale >= first) & (self.stale < end)]
        if not len(index):
            return
        assert batch.log_importance is not None
        again, value = evaluate_again(self._policy, batch, index, self._microbatch_rows, self._ranks, self._threads)
        batch.log_importance[index] = again - batch.log_prob[index]
        batch.log_prob[index] = again
        if batch.value is not None:
            assert value is not None, "the policy acted with a critic and now has none"
            batch.value[index] = value

    def worth(self, end: int | None = None) -> float:
        """Effective sample size of rows 0, ..., end - 1 (None: all), as a share of them.

        By the ratios of whole decisions, whatever the loss cuts them into: those of single tokens are all close to 1
        when a policy has moved far.
        """
        batch = self._batch
        if batch.log_importance is None:
            return 1.0
        mask = batch.mask[:end]
        decision = importance(batch.log_importance[:end], mask, "chunk", self._policy.terms_per_step)
        return effective_share(decision, mask.any(dim=1, keepdim=True))

    def metrics(self) -> dict[str, float]:
        """What to tell of the whole batch, among it 'train/ess' (`worth`); nothing if no row is stale."""
        batch = self._batch
        if batch.log_importance is None:
            return {}
        ratio = importance(batch.log_importance, batch.mask, self._level, self._policy.terms_per_step)
        valid = unit_mask(batch.mask, self._level, self._policy.terms_per_step)
        return {
            "train/ess": self.worth(),
            "train/staleness": float(self._lag.mean()),
            "train/staleness_max": float(self._lag.max()),
            "train/importance_truncated": float((ratio[valid] > MAX_IMPORTANCE).double().mean()),
        }


def correct_ahead(
    correction: Correction, groups: Sequence[RolloutBatch], size: int, begin: Callable[[float], None]
) -> Iterator[RolloutBatch]:
    """Yield the groups of the batch, `size` of them a minibatch, each minibatch when its rows are corrected.

    A thread corrects the next ones meanwhile: for a correction by a policy that is not where it is learned. begin:
    hears, before the first group, what the first minibatch is worth.
    """
    ends = list(accumulate(sum(map(len, groups[at : at + size])) for at in range(0, len(groups), size)))
    with closing(Threads(1, "evaluate")) as other:
        jobs = [other.submit(lambda span: correction.apply(*span), span) for span in pairwise([0, *ends])]
        try:
            for number, job in enumerate(jobs):
                job.result()
                if number == 0:
                    begin(correction.worth(ends[0]))
                yield from groups[number * size : (number + 1) * size]
        finally:
            for job in jobs:
                job.cancel()
