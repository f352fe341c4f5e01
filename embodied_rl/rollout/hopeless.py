"""Which training episodes are given up: those that the critic values lower than it ever valued a success.

A failure runs to the horizon, so most control steps of an unskilled policy are spent on failures. An episode is stopped
before a decision at which fewer than k of N remembered successes had a value as low as its own. Late decisions, which
fewer than k of them reached, stop it whatever its value: a horizon learned from successes. k is the largest for which
at most a given share of these successes would have been stopped anywhere, each judged by the others.

Successes that the rule would stop are seen only in the audited share of the episodes, so there they count for several
(inverse probability weights). What is stopped in batch b depends on batches that ended before b, not on timing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.rng import philox
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec

if TYPE_CHECKING:
    import torch

    from embodied_rl.rollout.episode import ActiveEpisode

FALSE_STOPS, AUDIT_SHARE = 0.03, 0.1
"""Defaults of the share of successes that may be stopped, and of the episodes that never are."""
FIRST_BATCH = 2
"""Values before this batch are a new critic's, and are not learned from."""
ENOUGH, MEMORY = 200, 10
"""Batches are remembered until newer ones have so many successes, and at most so many."""
OWN_STOPS = 3
"""A task is judged by its own successes where so many of them may be stopped, otherwise by those of all tasks."""
MIN_OWN = 5
"""No episode of a task with fewer remembered successes is stopped: it must not lose the few that it will have."""
# DecisionRng keys an episode's draws by (seed, decision, 0 or 1).
_AUDIT = 2


@dataclass(frozen=True, slots=True)
class Success:
    """A remembered success. weight: how many it stands for; values: of the critic, one a decision."""

    task: str
    weight: float
    values: tuple[float, ...]


def calibrate(successes: Sequence[Success], false_stops: float) -> Array:
    """The value below which an episode is stopped, by decision; float64 [T + 1], the last one for all later decisions.

    Args:
        successes: the longest has T decisions.
        false_stops: share of their weight that may be stopped, each judged by the others.

    Returns:
        -inf where nothing is stopped (always at the first decision), inf where everything is.
    """
    decisions = max((len(success.values) for success in successes), default=0)
    own = np.array([success.weight for success in successes])
    least = np.full(len(successes), np.inf)  # of the weight of other successes with a value as low, over decisions
    levels: list[tuple[Array, Array]] = []
    for decision in range(1, decisions):
        there = np.array([row for row, success in enumerate(successes) if len(success.values) > decision])
        value = np.array([successes[row].values[decision] for row in there])
        order = np.argsort(value, kind="stable")
        value, there = value[order], there[order]
        below = np.cumsum(own[there])
        as_low = below[np.searchsorted(value, value, side="right") - 1] - own[there]
        least[there] = np.minimum(least[there], as_low)
        levels.append((value, below))
    needed = _needed(least, own, false_stops)
    thresholds = np.full(decisions + 1, -np.inf)
    if needed > 0:
        for decision, (value, below) in enumerate(levels, start=1):
            place = int(np.searchsorted(below, needed))
            thresholds[decision] = value[place] if place < len(value) else np.inf
        thresholds[-1] = np.inf
    return thresholds


def _needed(least: Array, weight: Array, false_stops: float) -> float:
    """The largest k such that the weight of those with `least` below k is a share of at most `false_stops`.

    0 where they are too few for one of them to be stopped.
    """
    if len(least) * false_stops < 1:
        return 0.0
    order = np.argsort(least, kind="stable")
    over = np.cumsum(weight[order]) > false_stops * weight.sum()
    return float(least[order[int(np.argmax(over))]])


class HopelessRule:
    """Stops episodes that the critic gives no hope, as earlier batches allow.

    Args:
        false_stops: share of the successes that may be stopped.
        audit_share: share of the episodes, by their seed, that is never stopped.

    Example:
        >>> rule = HopelessRule(false_stops=0.03, audit_share=0.1)
        >>> stopped = rule.judge(episodes, act.value)  # before their chunks are simulated
    """

    def __init__(self, false_stops: float = FALSE_STOPS, audit_share: float = AUDIT_SHARE) -> None:
        self._false_stops = false_stops
        self._audit_share = audit_share
        self._batches: list[list[Success]] = []
        self._thresholds: dict[str, Array] = {}

    def audits(self, spec: EpisodeSpec) -> bool:
        """Whether the episode is never stopped."""
        return bool(philox(spec.seed, 0, _AUDIT).random() < self._audit_share)

    def judge(self, episodes: Sequence[ActiveEpisode], value: torch.Tensor | None) -> list[int]:
        """Note the values of a decision; return the rows of the episodes that end before it.

        Args:
            episodes: N.
            value: float32 [N], of what they see now.

        Raises:
            RuntimeError: the policy has no critic.
        """
        if value is None:
            raise RuntimeError("an episode is hopeless by its critic, and the policy returned no value.")
        stopped: list[int] = []
        for row, (episode, now) in enumerate(zip(episodes, value.tolist(), strict=True)):
            episode.values.append(now)
            limits = self._thresholds.get(episode.spec.task)
            if limits is None or episode.spec.bank_row is not None:
                continue
            if now < limits[min(episode.num_decisions, len(limits) - 1)]:
                episode.hopeless = True
                if not self.audits(episode.spec):
                    stopped.append(row)
        return stopped

    def close_batch(self, batch: int, results: Sequence[EpisodeResult]) -> dict[str, float]:
        """Learn from batch `batch`, which has ended, what to stop from the next one on; return its metrics."""
        own = [result for result in results if result.spec.bank_row is None]
        if batch >= FIRST_BATCH:
            self._batches.append([self._success(result) for result in own if result.success])
            self._forget()
            self._calibrate()
        return self._metrics(own)

    def state_dict(self) -> dict[str, Any]:
        """JSON of the remembered batches."""
        batches = [[[x.task, x.weight, list(x.values)] for x in batch] for batch in self._batches]
        return {"false_stops": self._false_stops, "audit_share": self._audit_share, "batches": batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raise UserError if it was made by other rules."""
        if (state["false_stops"], state["audit_share"]) != (self._false_stops, self._audit_share):
            raise UserError("the checkpoint's episodes were stopped by other rules; resume with the run's own config.")
        self._batches = [
            [Success(task, weight, tuple(values)) for task, weight, values in batch] for batch in state["batches"]
        ]
        self._calibrate()

    def _success(self, result: EpisodeResult) -> Success:
        assert result.stop is not None, "the rule saw it"
        return Success(result.spec.task, 1 / self._audit_share if result.stop.hopeless else 1.0, result.stop.values)

    def _forget(self) -> None:
        sizes = [len(batch) for batch in self._batches]
        first = max(0, len(sizes) - MEMORY)
        while sum(sizes[first + 1 :]) >= ENOUGH:
            first += 1
        del self._batches[:first]

    def _calibrate(self) -> None:
        everything = [success for batch in self._batches for success in batch]
        together = calibrate(everything, self._false_stops)
        self._thresholds = {}
        for task in dict.fromkeys(success.task for success in everything):
            own = [success for success in everything if success.task == task]
            if len(own) < MIN_OWN:
                continue
            enough = len(own) * self._false_stops >= OWN_STOPS
            self._thresholds[task] = calibrate(own, self._false_stops) if enough else together

    def _metrics(self, results: Sequence[EpisodeResult]) -> dict[str, float]:
        """Of no episodes, and of no audited ones or successes among them, there is nothing to say."""
        if not results:
            return {}
        traces = [result.stop for result in results if result.stop is not None]
        audited = [result for result in results if self.audits(result.spec)]
        won = [result for result in audited if result.success]
        found = {
            "rollout/hopeless": sum(trace.stopped for trace in traces) / len(results),
            "rollout/audited": float(len(audited)),
        }
        if audited:
            found["rollout/success_audited"] = len(won) / len(audited)
        if won:
            found["rollout/false_stops"] = sum(x.stop is not None and x.stop.hopeless for x in won) / len(won)
        return found
