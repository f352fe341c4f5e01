"""The band in which a further run of the same recipe ends, from recorded runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Band:
    """Success of recorded runs, and where another one is expected with 95 % probability."""

    mean: float
    low: float
    high: float

    def __contains__(self, rate: float) -> bool:
        return self.low <= rate <= self.high


def prediction_band(rates: Sequence[float], episodes: int) -> Band:
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
    return Band(mean, max(0.0, mean - reach), min(1.0, mean + reach))
