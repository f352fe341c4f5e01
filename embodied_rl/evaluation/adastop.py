"""Which of several policies, or recipes, are better: AdaStop's group-sequential test, one error rate for all pairs.

The procedure is that of Mathieu et al. 2023, "AdaStop: adaptive statistical testing for sound comparisons of Deep RL
agents", algorithm 1, over one of two units.

Policies are compared by paired episodes (`compare`). Its permutations become sign flips here, because two policies that
start from one initial state make a pair: if neither is better, a difference d is as likely as -d. One set of signs
flips the differences of all comparisons, so that what they share is kept. A statistic is a sum of differences over the
root of their sum of squares, which no flip changes: so a pair that differs in many states does not hide one that
differs in few.

Recipes are compared by training seeds (`compare_seeds`), each of which gives one number, the success of its policy on
the evaluated states. If two recipes train alike, it doesn't matter which of them a seed's number came from: within the
seeds of one look they may change places, the same places in all comparisons. A statistic is a difference of sums over
the root of the sum of squares around the mean of both recipes' seeds of a look, which no permutation changes. Within a
look it orders permutations as Welch's t does, both recipes having as many seeds: it need not be studentised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.evaluation.intervals import paired_interval, seeds_interval
from embodied_rl.rng import RunStream, philox
from embodied_rl.types import Array

Decision = Literal["better", "worse", "not decided"]
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """What is fixed before the first episode.

    Args:
        looks: how many pairs of episodes (or training seeds) there are at each look at the data, rising; the last is
            the most that is run.
        level: how probable it is, at most, that any of the comparisons is decided though neither policy is better.
        draws: random sign vectors (or permutations), the observed one among them.
        seed: of the random draws.

    Example:
        >>> plan = ComparisonPlan(looks=(50, 100, 150, 200, 250))
    """

    looks: tuple[int, ...]
    level: float = 0.05
    draws: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.looks or self.looks[0] < 1 or any(a >= b for a, b in itertools.pairwise(self.looks)):
            raise UserError(f"the looks at the data must be rising numbers from 1, got {list(self.looks)}.")
        if not 0 < self.level < 1:
            raise UserError(f"the level must lie between 0 and 1, got {self.level}.")
        if self.draws * self.level < len(self.looks):
            least = math.ceil(len(self.looks) / self.level)
            raise UserError(f"{self.draws} draws cannot tell a level of {self.level}: take at least {least}.")

    def signs(self) -> Array:
        """float32 [draws, pairs] of -1 and 1; the first row is the observed one, all 1."""
        bits = philox(self.seed, RunStream.SIGNS).integers(0, 2, (self.draws, self.looks[-1]), dtype=np.int8)
        bits[0] = 1
        return (2 * bits - 1).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pair of policies.

    Args:
        first, second: their names.
        verdict: of `first`; 'not decided' is no proof of equality.
        difference: mean outcome of `first` minus that of `second`, on the states (or seeds) that both have run.
        low, high: its 95 % interval, of this pair alone: Agresti and Min's (2005) over states, Welch's over seeds.
        pairs: states (or training seeds of each) that both have run.
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


Statistics = Callable[[Sequence[Pair], int], tuple[Array, Array]]
"""Of the pairs at a look (from 1): their sizes, float [looks so far, draws, pairs], the observed draw first, of one
scale for all pairs; and the observed differences, float [pairs]."""

_OPPOSITE: dict[Decision, Decision] = {"better": "worse", "worse": "better", "not decided": "not decided"}


def compare(
    outcomes: Mapping[str, Sequence[float] | Array],
    plan: ComparisonPlan,
    signs: Array | None = None,
    pairs: Sequence[Pair] | None = None,
) -> ComparisonState:
    """Look at the data as often as `plan` says and `outcomes` allow; a function of its arguments alone.

    A policy none of whose comparisons is open needs no more episodes, and may have fewer than the others.

    Args:
        outcomes: by name, an outcome for each pair of episodes, in the same order for all: 1 for success, 0 for none,
            or a mean over several runs of one state; NaN where it was not measured, which leaves that pair of episodes
            out of every comparison of the policy.
        plan: what was fixed before.
        signs: `plan.signs()`, where a caller keeps it.
        pairs: what is compared; None: each with each.

    Returns:
        The verdicts so far, and how many episodes whom the next look needs.
    """
    data = {name: np.asarray(values, np.float32) for name, values in outcomes.items()}
    drawn = plan.signs() if signs is None else signs

    def statistics(open_pairs: Sequence[Pair], look: int) -> tuple[Array, Array]:
        ends = plan.looks[:look]
        apart = np.stack([data[a][: ends[-1]] - data[b][: ends[-1]] for a, b in open_pairs], axis=1)
        apart = np.nan_to_num(apart, nan=0.0)  # a difference of zero has no part in any statistic
        parts = [drawn[:, start:end] @ apart[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)]
        norms = np.sqrt(np.stack([(apart[:end] ** 2).sum(axis=0) for end in ends]))
        return np.abs(np.cumsum(parts, axis=0)) / np.maximum(norms, _TINY)[:, None], apart.sum(axis=0)

    return _look_in_turn(data, plan, statistics, paired_interval, pairs)


def _look_in_turn(
    data: Mapping[str, Array],
    plan: ComparisonPlan,
    statistics: Statistics,
    interval: Callable[[Array, Array], tuple[float, float, float]],
    pairs: Sequence[Pair] | None = None,
) -> ComparisonState:
    """AdaStop's procedure over any statistics.

    Args:
        data: by name, what there is so far, [samples].
        plan: what was fixed before.
        statistics: of the open pairs at a look.
        interval: difference of two rows of equal length, with its 95 % interval.
        pairs: what is compared; None: each with each.
    """
    compared = list(itertools.combinations(data, 2)) if pairs is None else list(pairs)
    open_pairs, needed = list(compared), {}
    found: dict[Pair, tuple[Decision, int]] = {}
    for look, count in enumerate(plan.looks, 1):
        involved = {name for pair in open_pairs for name in pair}
        if any(len(data[name]) < count for name in involved):
            needed = {name: count for name in data if name in involved}
            break
        for pair, sign in _decide(open_pairs, *statistics(open_pairs, look), plan) if open_pairs else ():
            found[pair] = ("better" if sign > 0 else "worse", look)
            open_pairs.remove(pair)
    rows = []
    for first, second in compared:
        count = min(len(data[first]), len(data[second]))
        one, two = data[first][:count], data[second][:count]
        both = ~np.isnan(one) & ~np.isnan(two)
        difference, low, high = interval(one[both], two[both])
        verdict, look_of = found.get((first, second), ("not decided", None))
        rows.append(Comparison(first, second, verdict, difference, low, high, int(both.sum()), look_of))
    return ComparisonState(tuple(rows), needed)


def _decide(pairs: Sequence[Pair], sizes: Array, apart: Array, plan: ComparisonPlan) -> list[tuple[Pair, float]]:
    """The comparisons that this look decides, the clearest first, each with its difference."""
    decided: list[tuple[Pair, float]] = []
    left = list(range(len(pairs)))
    while left:
        largest = sizes[:, :, left].max(axis=2)  # [look, draws]
        observed = sizes[-1, 0, left]
        if observed.max() <= _boundary(largest, plan):
            break
        at = left.pop(int(observed.argmax()))
        decided.append((pairs[at], float(apart[at])))
    return decided


def _boundary(largest: Array, plan: ComparisonPlan) -> float:
    """What the newest statistic must exceed: all looks so far spend at most their share of the level.

    largest: [looks so far, draws], the largest statistic over the open comparisons.
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


_SEEDS_A_LOOK = 5
"""Training seeds of a recipe at each look, as AdaStop's authors took."""


def seed_looks(seeds: int, looks: int | None, level: float) -> tuple[int, ...]:
    """How many training seeds of each recipe there are at each look.

    Args:
        seeds: of each recipe.
        looks: how many; None: one after every five seeds.
        level: how probable one wrong verdict may be.

    Raises:
        UserError: so few seeds in so many looks could never decide anything.
    """
    count = looks or max(1, seeds // _SEEDS_A_LOOK)
    ends = tuple(dict.fromkeys(-(-seeds * look // count) for look in range(1, count + 1)))
    ways = math.prod(math.comb(2 * (end - start), end - start) for start, end in itertools.pairwise((0, *ends)))
    if 2 / ways > level:  # the observed order and its mirror image are two of them
        raise UserError(
            f"{seeds} training seeds in looks of {', '.join(map(str, np.diff((0, *ends))))} can change places in "
            f"{ways} ways only: no difference could be told at level {level:g}; take more seeds or fewer looks."
        )
    return ends


def places(plan: ComparisonPlan) -> Array:
    """float32 [draws, 2, seeds] of 1 (counts for the first recipe) and -1; the first draw is the observed one.

    As many of either in each look.
    """
    draw = philox(plan.seed, RunStream.PERMUTATIONS)
    found = np.empty((plan.draws, 2, plan.looks[-1]), np.float32)
    for start, end in itertools.pairwise((0, *plan.looks)):
        count = end - start
        order = draw.random((plan.draws, 2 * count)).argsort(axis=1)
        found[:, :, start:end] = np.where(order < count, 1, -1).reshape(plan.draws, 2, count)
    found[0] = np.array([[1], [-1]])
    return found


def compare_seeds(
    scores: Mapping[str, Sequence[float] | Array], plan: ComparisonPlan, drawn: Array | None = None
) -> ComparisonState:
    """Look at the data as often as `plan` says and `scores` allow; a function of its arguments alone.

    Args:
        scores: by recipe, the success of each training seed, in the order in which they are counted.
        plan: what was fixed before; its looks count training seeds of each recipe.
        drawn: `places(plan)`, where a caller keeps it.

    Returns:
        The verdicts so far, and how many training seeds of which recipes the next look needs.
    """
    data = {name: np.asarray(values, np.float32) for name, values in scores.items()}
    permutations = places(plan) if drawn is None else drawn

    def statistics(open_pairs: Sequence[Pair], look: int) -> tuple[Array, Array]:
        ends = plan.looks[:look]
        both = np.stack([[data[name][: ends[-1]] for name in pair] for pair in open_pairs])  # [pairs, 2, seeds]
        sums, squares = [], []
        for start, end in itertools.pairwise((0, *ends)):
            part = both[:, :, start:end].reshape(len(open_pairs), -1)
            part = part - part.mean(axis=1, keepdims=True)
            sums.append(permutations[:, :, start:end].reshape(len(permutations), -1) @ part.T)
            squares.append((part**2).sum(axis=1))
        norms = np.sqrt(np.cumsum(squares, axis=0))
        sizes = np.abs(np.cumsum(sums, axis=0)) / np.maximum(norms, _TINY)[:, None]
        return sizes, (both[:, 0] - both[:, 1]).sum(axis=1)

    return _look_in_turn(data, plan, statistics, seeds_interval)
