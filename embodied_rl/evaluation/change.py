"""By how much training changed a policy's outcome, on the initial states that two evaluations share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.evaluation.intervals import Z95, paired_interval


@dataclass(frozen=True, slots=True)
class Change:
    """The mean outcome of the second evaluation minus that of the first, state by state.

    Args:
        difference: of success rates, or of mean returns where the tasks have no success flag.
        low, high: its 95 % interval, of these two policies alone: Agresti and Min's (2005) of success, the normal one
            of returns.
        states: initial states that both measured.
        has_success: whether it is of success.
    """

    difference: float
    low: float
    high: float
    states: int
    has_success: bool = True


def paired_change(before: EvalReport, after: EvalReport, task: str | None = None) -> Change | None:
    """The change from `before` to `after` in all tasks, or in `task`.

    Returns:
        None where they share no initial state, as where a task does not repeat an episode from its seed.
    """
    has_success = after.overall.has_success
    first, second = (_outcomes(report, task, has_success=has_success) for report in (before, after))
    shared = [key for key in first if key in second]
    if not shared:
        return None
    one, two = ([values[key] for key in shared] for values in (first, second))
    if has_success:
        return Change(*paired_interval(two, one), len(shared))
    apart = np.subtract(two, one)
    mean, reach = float(apart.mean()), Z95 * float(apart.std()) / math.sqrt(len(apart))
    return Change(mean, mean - reach, mean + reach, len(shared), has_success=False)


def _outcomes(report: EvalReport, task: str | None, *, has_success: bool) -> dict[tuple[str, int], float]:
    """Success, or the return, by task and initial state; empty where a state's number says nothing."""
    if not report.repeatable:
        return {}
    return {
        (row.spec.task, row.spec.init_state): float(row.success) if has_success else row.reward
        for row in report.results
        if task in (None, row.spec.task)
    }
