"""How far the rollout may run ahead of the learner."""

from __future__ import annotations

from dataclasses import dataclass

MIN_ESS = 0.8
"""So many groups begin before their policy is there that the effective sample size of their whole batch stays above
this share. Single steps may be on stale rows alone; their learning rates follow from what these are worth."""


@dataclass(frozen=True, slots=True)
class Lookahead:
    """How far the rollout may run ahead of the learner: rows at most `max_staleness` updates old, `groups` of further
    batches under way (None: whole batches).
    """

    max_staleness: int = 0
    groups: int | None = None

    def limited_by_ess(self, worth: float, batch: int) -> Lookahead:
        """The same, and no further than `MIN_ESS` allows, if a stale row is worth `worth` of one that is not.

        worth: effective sample size of rows an update old, as a share of them: 1 / E[r^2] for ratios r of mean 1. With
        a share s of such rows that of a batch is 1 / (1 + s (1 / worth - 1)). batch: groups of one.
        """
        loss = 1 / worth - 1
        spare = 1 / MIN_ESS - 1
        if loss <= spare:
            return self
        most = int(batch * spare / loss)
        return Lookahead(min(self.max_staleness, 1), most if self.groups is None else min(self.groups, most))


ON_POLICY = Lookahead()
"""Not at all."""
