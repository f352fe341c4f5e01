"""Which of several differences between two evaluations makes their scores differ: paired runs, one change at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.evaluation.adastop import Decision
from embodied_rl.evaluation.intervals import paired_interval
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec

_SAME = 1e-6
"""Commands that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One episode: its outcome, None where it broke the simulator, and its commands, float32 [steps, A]."""

    spec: EpisodeSpec
    result: EpisodeResult | None
    actions: Array

    @property
    def success(self) -> float:
        """1, 0, or NaN where it was not measured."""
        return math.nan if self.result is None else float(self.result.success)


@dataclass(frozen=True, slots=True)
class Effect:
    """What one factor does, on the same initial states.

    Args:
        factor: its name.
        first, second: its value in each evaluation, in words.
        success: of the episodes with the first value, and with the second.
        difference: success with the second value minus that with the first; low, high: its 95 % interval.
        episodes: pairs of which both episodes were measured.
        not_measured: pairs that are left out, as an episode of them broke the simulator.
        parted: pairs in which the commands differ at some step that both ran.
        step: the first such step, median over those pairs; None where none parted.
        example: the pair that parted at the earliest step: its episode and that step; None where none did.
        verdict: of the second value where looks were taken one after another: is it 'better', 'worse' or 'not decided'.
    """

    factor: str
    first: str
    second: str
    success: tuple[float, float]
    difference: float
    low: float
    high: float
    episodes: int
    parted: int
    step: float | None
    example: tuple[EpisodeSpec, int] | None
    verdict: Decision | None = None
    not_measured: int = 0


def first_parting(first: Array, second: Array) -> int | None:
    """The first control step at which two episodes command something else; None where they agree as long as both ran.

    first, second: float32 [steps, A].
    """
    count = min(len(first), len(second))
    apart = np.abs(first[:count] - second[:count]).max(axis=1, initial=0.0) > _SAME
    return int(apart.argmax()) if apart.any() else None


def effect(
    factor: str,
    values: tuple[str, str],
    first: Sequence[Trace],
    second: Sequence[Trace],
    verdict: Decision | None = None,
) -> Effect:
    """Compare the same episodes under two values of a factor.

    Args:
        factor: its name.
        values: in words.
        first, second: traces of the same episodes, in the same order.
        verdict: of a test of the second value, where there was one.

    Raises:
        ValueError: they are of other episodes.
        UserError: no episode was measured under both.
    """
    if [t.spec for t in first] != [t.spec for t in second] or not first:
        raise ValueError("the two runs must have the same episodes, at least one")
    all_pairs = list(zip(first, second, strict=True))
    both = [pair for pair in all_pairs if None not in (pair[0].result, pair[1].result)]
    if not both:
        raise UserError(
            f"{factor}: the simulator broke in every one of {len(first)} episodes, on one side or the other."
        )
    first, second = zip(*both, strict=True)
    outcomes = [[trace.success for trace in side] for side in (first, second)]
    difference, low, high = paired_interval(outcomes[1], outcomes[0])
    parted = {
        index: step
        for index, (one, two) in enumerate(zip(first, second, strict=True))
        if (step := first_parting(one.actions, two.actions)) is not None
    }
    earliest = min(parted, key=lambda index: (parted[index], index), default=None)
    return Effect(
        factor,
        *values,
        (sum(outcomes[0]) / len(first), sum(outcomes[1]) / len(second)),
        difference,
        low,
        high,
        len(first),
        len(parted),
        median(parted.values()) if parted else None,
        None if earliest is None else (first[earliest].spec, parted[earliest]),
        verdict,
        len(all_pairs) - len(both),
    )


def ranked(effects: Sequence[Effect]) -> list[Effect]:
    """The largest difference first; of equal ones that which changes more episodes, and earlier."""
    return sorted(effects, key=lambda e: (-abs(e.difference), -e.parted, e.step is None, e.step or 0.0))


def to_json(item: Effect) -> dict[str, object]:
    """Plain values."""
    data = asdict(item)
    if item.example is not None:
        spec, step = item.example
        data["example"] = {"task": spec.task, "init_state": spec.init_state, "step": step}
    if not item.not_measured:
        del data["not_measured"]
    return data
