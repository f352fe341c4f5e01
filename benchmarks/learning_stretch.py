"""How many times as many episodes one way to train needs as another: the curves of all seeds against each other.

A level that a noisy curve first reaches says little with three seeds. Here the whole curves are laid upon each other:
the factor by which the reference's episodes are to be stretched so that its mean training success fits best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embodied_rl.benchmarks.page import table
from embodied_rl.telemetry.curve import Curve, curve_of
from embodied_rl.types import Array

WINDOW = 5
"""Iterations that the reference is smoothed over."""
DRAWS = 400
_FACTORS = np.linspace(0.5, 2.5, 401)

Rows = Sequence[Mapping[str, Any]]


def stretch(reference: Sequence[Rows], runs: Sequence[Rows]) -> tuple[float, float, float]:
    """The factor, and the 5th and 95th percentile of it over seeds that are drawn anew from both sides.

    reference, runs: metrics of runs, line by line. 1.2 says that `runs` are after 120 episodes where `reference` is
    after 100. Seeds are few: the interval is a rough one.
    """
    one, two = [curve_of(rows) for rows in reference], [curve_of(rows) for rows in runs]
    rng = np.random.default_rng(0)
    drawn = [
        _factor(
            [one[i] for i in rng.integers(len(one), size=len(one))],
            [two[i] for i in rng.integers(len(two), size=len(two))],
        )
        for _ in range(DRAWS)
    ]
    low, high = np.percentile(drawn, [5, 95])
    return _factor(one, two), float(low), float(high)


def _factor(reference: Sequence[Curve], runs: Sequence[Curve]) -> float:
    episodes, success = _mean(reference)
    smooth = np.convolve(np.pad(success, WINDOW // 2, mode="edge"), np.ones(WINDOW) / WINDOW, "valid")
    at, found = _mean(runs)
    errors = [np.square(np.interp(at / factor, episodes, smooth) - found).sum() for factor in _FACTORS]
    return float(_FACTORS[int(np.argmin(errors))])


def _mean(curves: Sequence[Curve]) -> tuple[Array, Array]:
    """Mean training success of the runs by episodes, as far as the shortest one goes."""
    count = min(len(curve.rollout) for curve in curves)
    episodes = np.array(curves[0].rollout_episodes[:count])
    return episodes, np.mean([curve.rollout[:count] for curve in curves], axis=0)


def stretch_table(groups: Mapping[str, Sequence[Rows]], references: Mapping[str, str]) -> list[str]:
    """A line for each group that has a reference among the others; [] if none has. groups: as for `pace_table`."""
    body = []
    for name, reference in references.items():
        factor, low, high = stretch(groups[reference], groups[name])
        body.append([name, reference, f"{factor:.2f}", f"{low:.2f} to {high:.2f}"])
    if not body:
        return []
    return [
        "## How many times as many episodes",
        "",
        "The factor by which the episodes of the reference are to be stretched so that its mean training success",
        f"(sampled decisions, {WINDOW} iterations) lies best on that of the runs. The interval is of 90 %, over seeds",
        "drawn anew.",
        "",
        *table(["", "reference", "factor", "interval"], body),
        "",
    ]
