"""Which of several policies are better: a group-sequential test of paired episodes, with one error rate for all pairs.

The procedure is AdaStop's (Mathieu et al. 2023, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL
agents", algorithm 1). Its permutations become sign flips here, because two policies that start from one initial state
make a pair: if neither is better, a difference d is as likely as -d. One set of signs flips the differences of all
comparisons, so that what they share is kept. A statistic is a sum of differences over the root of their sum of squares,
which no flip changes: so a pair that differs in many states does not hide one that differs in few.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import Z95
from embodied_rl.rng import philox
from embodied_rl.types import Array

Decision = Literal["better", "worse", "not decided"]
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """What is fixed before the first episode.

    Args:
        looks: how many pairs of episodes there are at each look at the data, rising; the last is the most that is run.
        level: how probable it is, at most, that any of the comparisons is decided though neither policy is better.
        flips: random sign vectors, the observed signs among them.
        seed: of the random signs.

    Example:
        >>> plan = ComparisonPlan(looks=(50, 100, 150, 200, 250))
    """

    looks: tuple[int, ...]
    level: float = 0.05
    flips: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.looks or self.looks[0] < 1 or any(a >= b for a, b in itertools.pairwise(self.looks)):
            raise UserError(f"the looks at the data must be rising numbers of episodes, got {list(self.looks)}.")
        if not 0 < self.level < 1:
            raise UserError(f"the level must lie between 0 and 1, got {self.level}.")
        if self.flips * self.level < len(self.looks):
            least = math.ceil(len(self.looks) / self.level)
            raise UserError(f"{self.flips} flips cannot tell a level of {self.level}: take at least {least}.")

    def signs(self) -> Array:
        """float32 [flips, pairs] of -1 and 1; the first row is the observed one, all 1."""
        bits = philox(self.seed, _SIGNS).integers(0, 2, (self.flips, self.looks[-1]), dtype=np.int8)
        bits[0] = 1
        return (2 * bits - 1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pair of policies.

    Args:
        first, second: their names.
        verdict: of `first`; 'not decided' is no proof of equality.
        difference: mean outcome of `first` minus that of `second`, on the states that both have run.
        low, high: its 95 % interval (Agresti and Min 2005), of this pair alone.
        pairs: states that both have run.
        look: number of the look that decided, from 1; None where none did.
    """

    first: str
    second: str
    verdict: Decision
    difference: float
    low: float
    high: float
    pairs: int
    look: int | None


@dataclass(frozen=True, slots=True)
class ComparisonState:
    """What the test says so far.

    Args:
        comparisons: every pair, in the order of the names.
        needed: names -> pairs of episodes that each must have for the next look; empty when the test is over.
    """

    comparisons: tuple[Comparison, ...]
    needed: dict[str, int]

    def verdict(self, name: str, other: str) -> Decision:
        """Of `name` against `other`."""
        for row in self.comparisons:
            if (row.first, row.second) == (name, other):
                return row.verdict
            if (row.second, row.first) == (name, other):
                return _OPPOSITE[row.verdict]
        raise KeyError(f"{name} was not compared with {other}")

    def ranks(self, names: Sequence[str]) -> dict[str, int]:
        """1 + how many of the others are better: policies between which nothing is decided may share a rank."""
        return {
            name: 1 + sum(self.verdict(name, other) == "worse" for other in names if other != name) for name in names
        }


_SIGNS = 11
_OPPOSITE: dict[Decision, Decision] = {"better": "worse", "worse": "better", "not decided": "not decided"}


def compare(
    outcomes: Mapping[str, Sequence[float] | Array], plan: ComparisonPlan, signs: Array | None = None
) -> ComparisonState:
    """Look at the data as often as `plan` says and `outcomes` allow; a function of its arguments alone.

    A policy none of whose comparisons is open needs no more episodes, and may have fewer than the others.

    Args:
        outcomes: by name, an outcome for each pair of episodes, in the same order for all: 1 for success, 0 for none,
            or a mean over several runs of one state.
        plan: what was fixed before.
        signs: `plan.signs()`, where a caller keeps it.

    Returns:
        The verdicts so far, and how many episodes whom the next look needs.
    """
    names = list(outcomes)
    data = {name: np.asarray(outcomes[name], np.float32) for name in names}
    found: dict[Pair, tuple[Decision, int]] = {}
    signs = plan.signs() if signs is None else signs
    open_pairs: list[Pair] = list(itertools.combinations(names, 2))
    for look, count in enumerate(plan.looks, 1):
        if not open_pairs:
            break
        involved = {name for pair in open_pairs for name in pair}
        if any(len(data[name]) < count for name in involved):
            needed = {name: count for name in names if name in involved}
            return ComparisonState(_comparisons(data, found, plan), needed)
        for pair, sign in _decide(data, open_pairs, signs, plan, look):
            found[pair] = ("better" if sign > 0 else "worse", look)
            open_pairs.remove(pair)
    return ComparisonState(_comparisons(data, found, plan), {})


def _decide(
    data: Mapping[str, Array], pairs: Sequence[Pair], signs: Array, plan: ComparisonPlan, look: int
) -> list[tuple[Pair, float]]:
    """The comparisons that this look decides, the clearest first, each with the sign of its difference."""
    ends = plan.looks[:look]
    apart = np.stack([data[a][: ends[-1]] - data[b][: ends[-1]] for a, b in pairs], axis=1)  # [pairs of episodes, C]
    parts = [signs[:, start:end] @ apart[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)]
    norms = np.sqrt(np.stack([(apart[:end] ** 2).sum(axis=0) for end in ends]))  # [look, C]
    sums = np.abs(np.cumsum(parts, axis=0)) / np.maximum(norms, _TINY)[:, None]  # [look, flips, C]
    decided: list[tuple[Pair, float]] = []
    left = list(range(len(pairs)))
    while left:
        largest = sums[:, :, left].max(axis=2)  # [look, flips]
        observed = sums[-1, 0, left]
        if observed.max() <= _boundary(largest, plan):
            break
        at = left.pop(int(observed.argmax()))
        decided.append((pairs[at], float(apart[:, at].sum())))
    return decided


def _boundary(largest: Array, plan: ComparisonPlan) -> float:
    """What the newest statistic must exceed: all looks so far spend at most their share of the level.

    largest: [looks so far, flips], the largest statistic over the open comparisons.
    """
    alive = np.ones(largest.shape[1], bool)
    spent, boundary = 0, math.inf
    for look, values in enumerate(largest, 1):
        budget = int(plan.level * look / len(plan.looks) * largest.shape[1] + 1e-9) - spent
        ordered = np.sort(values[alive])[::-1]
        boundary = float(ordered[budget]) + _ROUNDING if budget < len(ordered) else 0.0
        crossed = alive & (values > boundary)
        spent += int(crossed.sum())
        alive &= ~crossed
    return boundary


_ROUNDING, _TINY = 1e-4, 1e-6
"""Equal statistics differ by less where their sums were rounded; the norm where all differences are zero."""


def _comparisons(
    data: Mapping[str, Array], found: Mapping[Pair, tuple[Decision, int]], plan: ComparisonPlan
) -> tuple[Comparison, ...]:
    rows = []
    for first, second in itertools.combinations(data, 2):
        count = min(len(data[first]), len(data[second]))
        difference, low, high = paired_interval(data[first][:count], data[second][:count])
        verdict, look = found.get((first, second), ("not decided", None))
        rows.append(Comparison(first, second, verdict, difference, low, high, count, look))
    return tuple(rows)


def paired_interval(first: Sequence[float] | Array, second: Sequence[float] | Array) -> tuple[float, float, float]:
    """Mean of `first` minus that of `second`, and its 95 % interval.

    Agresti and Min (2005), "Simple improved confidence intervals for comparing matched proportions": half a pair more
    in each of the four cells. (0, -1, 1) without a pair.
    """
    apart = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    count = len(apart)
    if not count:
        return 0.0, -1.0, 1.0
    centre = float(apart.sum()) / (count + 2)
    variance = (float((apart**2).sum()) + 1) / (count + 2) - centre**2
    reach = Z95 * math.sqrt(max(0.0, variance) / (count + 2))
    return float(apart.mean()), max(-1.0, centre - reach), min(1.0, centre + reach)
