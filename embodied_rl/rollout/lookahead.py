"""How far the rollout may run ahead of the learner."""

from __future__ import annotations

from dataclasses import dataclass

MIN_ESS = 0.8
"""Least effective sample size ratio of a whole batch, which limits how many groups start ahead."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How far the rollout may run ahead of the learner.

    max_staleness: by how many updates a row's policy may be older than the one that is trained on it.
    groups: how many groups of later batches may run (None: whole batches).
    """

    max_staleness: int = 0
    groups: int | None = None

    def limited_by_ess(self, ess_ratio: float, batch: int) -> Lookahead:
        """A copy limited so that a batch keeps an effective sample size ratio of at least MIN_ESS.

        ess_ratio: of one-update-old rows, 1 / E[r^2] for importance ratios r of mean 1. A batch with a share s of such
        rows has the ratio 1 / (1 + s (1 / ess_ratio - 1)). batch: groups of a batch.
        """
        loss = 1 / ess_ratio - 1
        spare = 1 / MIN_ESS - 1
        if loss <= spare:
            return self
        most = int(batch * spare / loss)
        return Lookahead(min(self.max_staleness, 1), most if self.groups is None else min(self.groups, most))


ON_POLICY = Lookahead()
"""No lookahead."""
