"""Where a training run will end, from its first part: a sigmoid in time, weighed by all its plausible shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.types import Array

_DISPERSION = 2.0
"""Successes of one update vary more than coin flips do: its tasks and states differ, and the policy moves."""
_FLOOR = 1e-3


@dataclass(frozen=True, slots=True)
class Rate:
    """A measured success rate.

    Args:
        time: 0 at the start of the run, 1 at its end.
        rate: share of successes.
        episodes: how many it was measured on.
    """

    time: float
    rate: float
    episodes: float


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Success on held-out states at the end of the run: the expected one and a 95 % interval."""

    expected: float
    low: float
    high: float


def extrapolate(rollouts: Sequence[Rate], evaluations: Sequence[Rate]) -> Extrapolation:
    """Weigh every sigmoid of a grid by how well it explains the run so far.

    Sampled actions succeed at lo + (up - lo) / (1 + exp((mid - t) / width)); greedy ones, as evaluated, at these odds
    times a constant between 1 and 1.8, any of them unless evaluations of this run say more.

    Args:
        rollouts: success of the training episodes of each update.
        evaluations: on held-out states, after at least one update: before the first one the policy is another's work.

    Returns:
        The success at time 1.

    Raises:
        ValueError: nothing was measured.

    Example:
        >>> extrapolate([Rate(t / 30, 0.6 + t / 100, 128) for t in range(15)], []).expected
        0.83...
    """
    if not rollouts and not evaluations:
        raise ValueError("an extrapolation needs at least one measured rate")
    low, up, mid, width, gain = _grid()

    def sampled(time: float) -> Array:
        return np.clip(low + (up - low) / (1 + np.exp((mid - time) / width)), _FLOOR, 1 - _FLOOR)

    def greedy(time: float) -> Array:
        rate = sampled(time)
        return 1 / (1 + (1 - rate) / rate * np.exp(-gain))

    score = np.zeros(len(low))
    for points, rate_at in ((rollouts, sampled), (evaluations, greedy)):
        for point in points:
            rate = rate_at(point.time)
            likelihood = point.rate * np.log(rate) + (1 - point.rate) * np.log(1 - rate)
            score += point.episodes * likelihood / _DISPERSION
    weight = np.exp(score - score.max())
    weight /= weight.sum()
    end = greedy(1.0)
    order = np.argsort(end, kind="stable")
    reached = np.cumsum(weight[order])
    low_end, high_end = (float(end[order[min(np.searchsorted(reached, q), len(end) - 1)]]) for q in (0.025, 0.975))
    return Extrapolation(float(weight @ end), low_end, high_end)


def _grid() -> tuple[Array, ...]:
    """(lo, up, mid, width, log odds of greedy against sampled actions), of every sigmoid that does not fall."""
    axes = (
        np.linspace(0.02, 0.98, 17),
        np.linspace(0.02, 0.995, 24),
        np.linspace(-0.4, 1.0, 13),
        np.geomspace(0.04, 0.5, 7),
        np.linspace(0.0, 0.6, 5),
    )
    low, up, mid, width, gain = (part.ravel() for part in np.meshgrid(*axes, indexing="ij"))
    rising = up >= low
    return low[rising], up[rising], mid[rising], width[rising], gain[rising]
