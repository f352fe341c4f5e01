"""Which training episodes are given up: those that the critic values lower than nearly all successes before them.

A failure runs to the horizon, so most control steps of an unskilled policy are spent on failures. An episode is stopped
where its value lies more standard deviations below the mean of successes at the same decision than nearly any of
these ever did, or after more decisions than nearly any of them took: a horizon learned from successes. Each of the two
is one number that may cost half of the allowed share of successes; limits set for every decision apart would fit the
successes that are remembered, and cost far more of those to come.

Successes that the rule would stop are seen only in the audited share of the episodes. Too few are seen there to stand
for all that were stopped: nearly always it is none, limits rise with each batch that shows no success below them, and
settle where one in as many is lost as are audited. So how many are lost is estimated with a prior, and they count
whether one was seen or not. What is stopped in batch b depends on batches that ended before b, not on timing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
ENOUGH, MEMORY = 100, 10
"""Batches are remembered until newer ones have so many successes of every task, and at most so many."""
MIN_STOPS = 2
"""A task's successes set its limits where so many of them may be stopped. Those of other tasks, with other values and
lengths, would stop all episodes of a task that is behind."""
MIN_THERE = 20
"""Where fewer successes still run, mean and standard deviation are those of the decision before."""
_LEAST_STD, _ROUNDING = 1e-6, 1e-6
_FEW = 5
"""Below the lowest success lies a step as wide as those between so many of the lowest, on average."""
_RULE = 2
"""Of a checkpoint's state: how its successes are weighed."""
# DecisionRng keys an episode's draws by (seed, decision, 0 or 1).
_AUDIT = 2


@dataclass(frozen=True, slots=True)
class Success:
    """A remembered success.

    Args:
        task: its task.
        weight: how many it stands for.
        values: of the critic, one a decision.
        judged: its task had limits.
        audited: they could not stop it.
        lost: they would have.
    """

    task: str
    weight: float
    values: tuple[float, ...]
    judged: bool = False
    audited: bool = False
    lost: bool = False


def weigh(successes: Sequence[Success], false_stops: float) -> tuple[list[Success], float]:
    """A task's successes with weights that make up for those that were stopped.

    Limits that are as they should be lose a share `false_stops` of the successes, which is the prior: as if one loss
    had been seen in 1 / false_stops of them (the mean of a Beta posterior). Where audited ones were lost, they stand
    for all that were.

    Returns:
        The successes, and the weight of those that were stopped where none of them was seen.
    """
    judged = [success for success in successes if success.judged]
    lost = sum(success.lost for success in judged)
    audited = sum(success.audited for success in judged)
    share = (1.0 + lost) / (1.0 / false_stops + audited)
    stopped = (len(judged) - lost) * share / (1.0 - share)
    if lost == 0:
        return list(successes), stopped
    weight = max(1.0, stopped / lost)
    return [replace(success, weight=weight) if success.lost else success for success in successes], 0.0


def calibrate(successes: Sequence[Success], false_stops: float, stopped: float = 0.0) -> Array:
    """The value below which an episode is stopped, by decision; float64 [T + 1], the last one for all later decisions.

    Args:
        successes: the longest has T decisions.
        false_stops: share of their weight that may be stopped.
        stopped: weight of further ones that were stopped already.

    Returns:
        -inf where nothing is stopped: at the first decision, and everywhere if there are too few successes. inf where
        everything is.
    """
    decisions = max((len(success.values) for success in successes), default=0)
    limits = np.full(decisions + 1, -np.inf)
    if len(successes) * false_stops < MIN_STOPS:
        return limits
    weight = np.array([success.weight for success in successes])
    length = np.array([len(success.values) for success in successes])
    value = np.full((len(successes), decisions), np.nan)
    for row, success in enumerate(successes):
        value[row, : length[row]] = success.values
    mean, std = _spread(value, weight)
    lowest = np.nanmin((value[:, 1:] - mean[1:]) / std[1:], axis=1, initial=np.inf)
    budget = 0.5 * max(0.0, false_stops * (weight.sum() + stopped) - stopped)
    limits[1:-1] = mean[1:] + (_below(lowest, weight, budget) - _ROUNDING) * std[1:]
    limits[int(-_quantile(-length.astype(float), weight, budget)) :] = np.inf
    return limits


def _spread(value: Array, weight: Array) -> tuple[Array, Array]:
    """Mean and standard deviation by decision, float64 [T] each, of float64 [N, T] that is NaN where none was made."""
    mean, std = np.zeros(value.shape[1]), np.ones(value.shape[1])
    for decision, column in enumerate(value.T):
        there = ~np.isnan(column)
        if decision > 0 and there.sum() < MIN_THERE:
            mean[decision], std[decision] = mean[decision - 1], std[decision - 1]
            continue
        mean[decision] = np.average(column[there], weights=weight[there])
        variance = np.average((column[there] - mean[decision]) ** 2, weights=weight[there])
        std[decision] = max(float(np.sqrt(variance)), _LEAST_STD)
    return mean, std


def _below(number: Array, weight: Array, budget: float) -> float:
    """Below which a weight of about `budget` of further numbers lies, where float64 [N] of such are known.

    Of N further ones k are expected below the k-th lowest. Below the lowest goes a step as wide as those between a few.
    """
    order = np.argsort(number, kind="stable")
    count = int(np.argmax(np.cumsum(weight[order]) > budget))
    if count > 0:
        return float(number[order[count - 1]])
    few = number[order[: _FEW + 1]]
    step = (few[-1] - few[0]) / (len(few) - 1) if len(few) > 1 and math.isfinite(few[-1]) else 0.0
    return float(few[0] - step)


def _quantile(number: Array, weight: Array, budget: float) -> float:
    """The largest of `number`, float64 [N], below which lies a weight of at most `budget`."""
    order = np.argsort(number, kind="stable")
    return float(number[order[int(np.argmax(np.cumsum(weight[order]) > budget))]])


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

    def judge(
        self, episodes: Sequence[ActiveEpisode], value: torch.Tensor | None, lost: Sequence[int] = ()
    ) -> list[int]:
        """Note the values of a decision; return the rows of the episodes that end before it.

        Args:
            episodes: N.
            value: float32 [N], of what they see now.
            lost: rows that see nothing, whose simulator broke: their next step fails, and they run again.

        Raises:
            RuntimeError: the policy has no critic.
        """
        if value is None:
            raise RuntimeError("an episode is hopeless by its critic, and the policy returned no value.")
        stopped: list[int] = []
        for row, (episode, now) in enumerate(zip(episodes, value.tolist(), strict=True)):
            if row in lost:
                continue
            episode.values.append(now)
            limits = self._thresholds.get(episode.spec.task)
            # where success does not end an episode, its later steps are no failure's
            if limits is None or episode.success or episode.spec.bank_row is not None:
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
            self._drop_old()
            self._calibrate()
        return self._metrics(own)

    def state_dict(self) -> dict[str, Any]:
        """JSON of the remembered batches."""
        batches = [[[x.task, list(x.values), x.judged, x.audited, x.lost] for x in batch] for batch in self._batches]
        own = {"rule": _RULE, "false_stops": self._false_stops, "audit_share": self._audit_share}
        return own | {"batches": batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raise UserError if it was made by other rules."""
        own = (_RULE, self._false_stops, self._audit_share)
        if (state.get("rule"), state["false_stops"], state["audit_share"]) != own:
            raise UserError(
                "the checkpoint's episodes were stopped by other rules; resume with the run's own config and version."
            )
        self._batches = [
            [Success(task, 1.0, tuple(values), *seen) for task, values, *seen in batch] for batch in state["batches"]
        ]
        self._calibrate()

    def _success(self, result: EpisodeResult) -> Success:
        assert result.stop is not None, "the rule saw it"
        task, judged = result.spec.task, result.spec.task in self._thresholds
        return Success(task, 1.0, result.stop.values, judged, self.audits(result.spec), result.stop.hopeless)

    def forget(self) -> None:
        """Forget all batches, whose values are of a critic that is no more."""
        self._batches.clear()
        self._calibrate()

    def _drop_old(self) -> None:
        del self._batches[:-MEMORY]
        while len(self._batches) > 1:
            newer = Counter(success.task for batch in self._batches[1:] for success in batch)
            if any(newer[success.task] < ENOUGH for success in self._batches[0]):
                return
            del self._batches[0]

    def _calibrate(self) -> None:
        successes: dict[str, list[Success]] = {}
        for batch in self._batches:
            for success in batch:
                successes.setdefault(success.task, []).append(success)
        self._thresholds = {
            task: calibrate(*self._weighed(own))
            for task, own in successes.items()
            if len(own) * self._false_stops >= MIN_STOPS
        }

    def _weighed(self, own: Sequence[Success]) -> tuple[list[Success], float, float]:
        weighed, stopped = weigh(own, self._false_stops)
        return weighed, self._false_stops, stopped

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
            "rollout/tasks_with_limits": float(len(self._thresholds)),
        }
        if audited:
            found["rollout/success_audited"] = len(won) / len(audited)
        if won:
            found["rollout/false_stops"] = sum(x.stop is not None and x.stop.hopeless for x in won) / len(won)
        return found
