"""How further episodes will go, as far as a few that were seen can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embodied_rl.rng import philox
from embodied_rl.types import EpisodeSpec

_PRIOR = 1.0
"""Episodes that each group counts as having gone like all groups together: only a few of it were seen."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of an episode that was seen: its group, how many decisions it took, and whether it succeeded."""

    group: int
    decisions: int
    success: bool


class Outlook:
    """Lengths and successes of other episodes, each fixed by its spec and `seed`.

    A group has the success rate of a group that was seen, drawn at random: groups share a task and its beginning, and
    some tasks are hard, others easy, which is what dynamic sampling drops groups for. An episode succeeds at its
    group's rate, and is as long as one that was seen to end that way.
    """

    def __init__(self, seen: Sequence[Outcome], seed: int = 0) -> None:
        self._seed = seed
        overall = (sum(outcome.success for outcome in seen) + 0.5) / (len(seen) + 1)
        groups: dict[int, list[bool]] = {}
        for outcome in seen:
            groups.setdefault(outcome.group, []).append(outcome.success)
        self._rates = [(sum(won) + _PRIOR * overall) / (len(won) + _PRIOR) for won in groups.values()]
        every = sorted(outcome.decisions for outcome in seen)
        self._lengths = {
            won: sorted(outcome.decisions for outcome in seen if outcome.success == won) or every
            for won in (False, True)
        }
        self._known: dict[EpisodeSpec, bool] = {}

    def won(self, spec: EpisodeSpec) -> bool:
        """Whether the episode succeeds."""
        if spec not in self._known:
            rate = self._rates[philox(self._seed, 1, spec.group).integers(len(self._rates))]
            self._known[spec] = bool(philox(self._seed, 2, spec.group, spec.episode_id).random() < rate)
        return self._known[spec]

    def length(self, spec: EpisodeSpec) -> int:
        """Decisions that the episode takes."""
        lengths = self._lengths[self.won(spec)]
        return lengths[spec.seed % len(lengths)]
