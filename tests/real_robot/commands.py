"""Streams of commands for tests of the gate: plain, extreme, adversarial and malformed."""

from __future__ import annotations

from typing import Any

import numpy as np

from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.limits import AxisLimits


def targets(
    rng: np.random.Generator, limits: AxisLimits, tick_s: float, held: np.ndarray, last: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """One command for each arm: held far targets, streams at and above full speed, noise, extremes, walls [B, n].

    last: Set points of the last two ticks, the newer one first.
    """
    position = last[0]
    count, n = position.shape
    side = rng.choice([-1.0, 1.0], (count, n))
    kinds = np.stack(
        [
            held,
            position + side[:, :1] * limits.velocity * tick_s * rng.uniform(0.2, 1.5, (count, 1)),
            position + rng.normal(size=(count, n)) * 10.0 ** rng.uniform(-8, 0, (count, 1)),
            side * 10.0 ** rng.uniform(-3, 300, (count, n)),
            np.where(side > 0, limits.upper, limits.lower) + rng.normal(size=(count, n)) * 1e-3,
            2 * last[0] - last[1],
            position,
        ]
    )
    return kinds[rng.choice(len(kinds), count, p=[0.38, 0.15, 0.12, 0.1, 0.1, 0.1, 0.05]), np.arange(count)]


def spoil(rng: np.random.Generator, names: tuple[str, ...], values: np.ndarray, stamp_ns: int) -> Command:
    """A malformed command."""
    n = len(names)
    broken = values.copy()
    broken[rng.integers(n)] = rng.choice([np.nan, np.inf, -np.inf])
    positions: list[Any] = [
        broken,
        values[:-1],
        np.append(values, 0.0),
        values[None],
        [str(value) for value in values],
        values.astype(complex),
        np.full(n, None),
        np.ones(n, bool),
        "positions",
        None,
        [[1.0], [1.0, 2.0]],
        [10**400] * n,
        {},
    ]
    wrong_names: list[Any] = [names[::-1], names[:-1], (*names[:-1], names[0]), (), None, "abc", [1] * n]
    kind = rng.integers(3)
    if kind == 0:
        return Command(stamp_ns, names, positions[rng.integers(len(positions))])
    if kind == 1:
        return Command(stamp_ns, wrong_names[rng.integers(len(wrong_names))], values)
    return Command(stamp_ns, names, values, broken)
