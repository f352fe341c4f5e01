"""95 % intervals of what was measured: success rates, differences between policies, means over training seeds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from embodied_rl.types import Array

Z95 = 1.959963984540054  # the 97.5 % quantile of the standard normal distribution


def wilson(successes: int, episodes: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson 1927); ValueError unless 0 <= successes <= episodes > 0."""
    if not 0 <= successes <= episodes or episodes == 0:
        raise ValueError(f"{successes} successes of {episodes} episodes make no proportion")
    rate, z2 = successes / episodes, Z95**2
    centre = (rate + z2 / (2 * episodes)) / (1 + z2 / episodes)
    spread = Z95 / (1 + z2 / episodes) * math.sqrt(rate * (1 - rate) / episodes + z2 / (4 * episodes**2))
    return max(0.0, centre - spread), min(1.0, centre + spread)


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


def seeds_interval(first: Sequence[float] | Array, second: Sequence[float] | Array) -> tuple[float, float, float]:
    """Mean of `first` minus that of `second`, and its 95 % interval over training seeds (Welch 1947).

    (difference, -1, 1) where one has fewer than two seeds: one says nothing of how seeds spread.
    """
    from scipy.stats import ttest_ind

    one, two = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if min(len(one), len(two)) < 2:
        return (float(one.mean() - two.mean()) if min(len(one), len(two)) else 0.0), -1.0, 1.0
    difference = float(one.mean() - two.mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of seeds that are all alike, whose interval is right
        low, high = ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
    return difference, max(-1.0, float(low)), min(1.0, float(high))


def mean_interval(scores: Sequence[float]) -> tuple[float, float, float]:
    """Mean over training seeds and its 95 % interval (Student); 0 to 1 around a single seed."""
    from scipy.stats import t

    values = np.asarray(scores, np.float64)
    if len(values) < 2:
        return float(values.mean()), 0.0, 1.0
    mean = float(values.mean())
    reach = float(t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return mean, max(0.0, mean - reach), min(1.0, mean + reach)


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """Success of recorded runs, and where another one is expected with 95 % probability."""

    mean: float
    low: float
    high: float

    def __contains__(self, rate: float) -> bool:
        return self.low <= rate <= self.high


def prediction_interval(rates: Sequence[float], episodes: int) -> PredictionInterval:
    """Student's 95 % prediction interval for one more run, cut to [0, 1].

    Args:
        rates: success of at least two runs with different seeds.
        episodes: evaluated ones of each run: runs spread no less than success on so many does by chance.

    Raises:
        ValueError: fewer than two runs.
    """
    from scipy.stats import t

    count = len(rates)
    if count < 2:
        raise ValueError("one run says nothing of how runs spread")
    mean = fmean(rates)
    chance = math.sqrt(max(mean * (1 - mean), 1 / episodes) / episodes)
    reach = float(t.ppf(0.975, count - 1)) * max(stdev(rates), chance) * math.sqrt(1 + 1 / count)
    return PredictionInterval(mean, max(0.0, mean - reach), min(1.0, mean + reach))
