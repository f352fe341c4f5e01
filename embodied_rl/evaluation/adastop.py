"""Which of several recipes are better, over training seeds: AdaStop's group-sequential permutation test.

A recipe's training seed gives one number, the success of its policy on the evaluated states. If two recipes train
alike, it doesn't matter which of them a seed's number came from: within the seeds of one look they may change places.
The same places change in all comparisons (Mathieu et al. 2023, algorithm 1). A statistic is a difference of sums over
the root of the sum of squares around the mean of both recipes' seeds of a look, which no permutation changes. Within a
look it orders permutations as Welch's t does, both recipes having as many seeds: it need not be studentised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.evaluation.paired import TINY, ComparisonPlan, ComparisonState, Pair, look_in_turn
from embodied_rl.rng import RunStream, philox
from embodied_rl.types import Array

SEEDS_A_LOOK = 5
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
    count = looks or max(1, seeds // SEEDS_A_LOOK)
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
        sizes = np.abs(np.cumsum(sums, axis=0)) / np.maximum(norms, TINY)[:, None]
        return sizes, (both[:, 0] - both[:, 1]).sum(axis=1)

    return look_in_turn(data, plan, statistics, seeds_interval)


def seeds_interval(first: Sequence[float] | Array, second: Sequence[float] | Array) -> tuple[float, float, float]:
    """Mean of `first` minus that of `second`, and its 95 % interval over training seeds (Welch 1947).

    (difference, -1, 1) where one has fewer than two seeds: one says nothing of how seeds spread.
    """
    from scipy.stats import t

    one, two = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if min(len(one), len(two)) < 2:
        return (float(one.mean() - two.mean()) if min(len(one), len(two)) else 0.0), -1.0, 1.0
    difference = float(one.mean() - two.mean())
    errors = [float(values.var(ddof=1)) / len(values) for values in (one, two)]
    if not any(errors):
        return difference, difference, difference
    freedom = sum(errors) ** 2 / sum(
        error**2 / (len(values) - 1) for error, values in zip(errors, (one, two), strict=True)
    )
    reach = float(t.ppf(0.975, freedom)) * math.sqrt(sum(errors))
    return difference, max(-1.0, difference - reach), min(1.0, difference + reach)


def mean_interval(scores: Sequence[float]) -> tuple[float, float, float]:
    """Mean over training seeds and its 95 % interval (Student); 0 to 1 around a single seed."""
    from scipy.stats import t

    values = np.asarray(scores, np.float64)
    if len(values) < 2:
        return float(values.mean()), 0.0, 1.0
    mean = float(values.mean())
    reach = float(t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, max(0.0, mean - reach), min(1.0, mean + reach)
