"""The shortest jerk-limited stop of a sampled joint, in closed form.

Units: a tick for time, jerk limit 1, so that a state is two numbers: `x`, the last step of the position, and `y`, the
last change of that step. One tick with jerk u in [-1, 1] is y += u, x += y, position += x: backward differences, the
quantities that robot controllers check (libfranka's rate limiter, for one).

The stop from (x, y) with x_eff = x + sign(y) P(|y|) >= 0, where P is the sum of a ramp to zero, changes y by
    y_k = max(y - k, -Y, min(0, k - c)),    k = 1, 2, ...
full jerk down to the acceleration limit Y, then full jerk back, with the real number c such that x ends at 0. It is
continuous in (x, y), and from its own next state it continues itself: that is what makes it a safe fallback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray"


def ramp_sum(length: Array) -> Array:
    """P(c) = sum over k >= 1 of max(c - k, 0), for any real c.

    Args:
        length: Where the ramp ends, ticks.

    Returns:
        The sum; 0 for c <= 1.
    """
    n = np.maximum(np.ceil(length) - 1, 0)
    return n * (length - (n + 1) / 2)


def ramp_length(total: Array) -> Array:
    """The c >= 1 with P(c) = `total`, for total >= 0."""
    n = np.floor((1 + np.sqrt(1 + 8 * total)) / 2)
    return total / n + (n + 1) / 2


@dataclass(frozen=True)
class Stop:
    """The stop from a state, for any number of joints at once; all fields have the state's shape.

    `sign` mirrors the state so that it brakes downwards; the other fields are of the mirrored state.
    """

    sign: Array
    x: Array
    y: Array
    lead: Array
    """Ticks in which y still falls towards 0."""
    ramp: Array
    """Further ticks of falling y."""
    floor: Array
    """Ticks at the acceleration limit."""
    rest: Array
    """Length of the ramp back to 0, ticks (real)."""

    def first(self, max_y: Array) -> Array:
        """The acceleration y of the next tick [...]."""
        attacks = self.lead + self.ramp + self.floor > 0
        return self.sign * np.where(attacks, np.maximum(self.y - 1, -max_y), np.minimum(0, 1 - self.rest))

    def distance(self, max_y: Array) -> Array:
        """How far the position still moves until rest [...], in ticks squared times jerk."""
        m = self.lead + self.ramp
        x_m = self.x + m * self.y - m * (m + 1) / 2
        f, n = self.floor, np.ceil(self.rest) - 1
        moved = m * self.x + self.y * m * (m + 1) / 2 - m * (m + 1) * (m + 2) / 6
        moved = moved + f * x_m - max_y * f * (f + 1) / 2
        return self.sign * (moved + n * (n - 1) / 2 * ((n - 2) / 3 + self.rest - n))

    def path(self, max_y: Array, ticks: int) -> tuple[Array, Array, Array]:
        """Positions relative to the start, x and y of the next `ticks` ticks, each [ticks, ...]."""
        k = np.arange(1, ticks + 1).reshape(-1, *[1] * np.ndim(self.x))
        attack = np.maximum(self.y - k, -max_y)
        n = self.lead + self.ramp + self.floor
        y = np.where(k <= n, attack, np.minimum(0, k - n - self.rest))
        x = self.x + np.cumsum(y, axis=0)
        return self.sign * np.cumsum(x, axis=0), self.sign * x, self.sign * y

    def ticks(self) -> int:
        """Ticks until every joint rests."""
        ticks = self.lead + self.ramp + self.floor + np.ceil(self.rest)
        return int(np.max(np.where((self.x != 0) | (self.y != 0), ticks, 0), initial=0))


def plan_stop(x: Array, y: Array, max_y: Array) -> Stop:
    """Plan the shortest stop.

    Args:
        x: Steps of the position [...], ticks squared times jerk.
        y: Changes of the step [...], ticks times jerk, |y| <= max_y.
        max_y: Acceleration limit, broadcast over the state.

    Returns:
        The stop of every joint.
    """
    effective = x + np.sign(y) * ramp_sum(np.abs(y))
    sign = np.where(effective < 0, -1.0, 1.0)
    x, y, left = sign * x, sign * y, np.abs(effective)
    lead = np.maximum(np.ceil(y) - 1, 0)
    y_p = y - lead
    left = np.where(y > 0, left, x)  # the step after the lead
    ramp, at_floor = _falling_ticks(left, y_p, max_y)
    fallen = left + ramp * y_p - ramp * (ramp + 1) / 2
    floor = np.where(at_floor, np.maximum(np.ceil((fallen - ramp_sum(1 + max_y)) / max_y), 0), 0)
    rest = ramp_length(np.maximum(fallen - floor * max_y, 0))
    return Stop(sign, x, y, lead, ramp, floor, rest)


def _falling_ticks(x: Array, y: Array, max_y: Array) -> tuple[Array, Array]:
    """Ticks of full falling jerk before the ramp back begins or the limit is reached, and where it is reached."""
    most = np.maximum(np.ceil(y + max_y) - 1, 0)
    # Twice the smooth form of "what is left fits the ramp back": 2n^2 + (4 - 4y)n + (2 - y)(1 - y) - 2x >= 0.
    half = 1 - y
    root = -half + np.sqrt(np.maximum(half * half - ((2 - y) * (1 - y) - 2 * x) / 2, 0))
    n = np.maximum(np.ceil(root) - 1, 0)
    for _ in range(2):  # the true, piecewise linear condition is at most one tick away
        fits = x + n * y - n * (n + 1) / 2 <= ramp_sum(n + 2 - y)
        n = np.where(fits, n, n + 1)
    return np.minimum(n, most), n >= most
