"""Singular values of an upper bidiagonal matrix by implicit QR, as LAPACK computes them (dbdsqr under dbdsdc).

J. Demmel and W. Kahan, "Accurate singular values of bidiagonal matrices", SIAM J. Sci. Stat. Comput. 11, 1990.
"""

from __future__ import annotations

import math

from numba import njit

from embodied_rl.sim.mujoco.lapack.rotations import (
    EPS,
    WIDTH,
    decompose_pair,
    rotation,
    smaller_value,
    turn,
    turn_fused,
)
from embodied_rl.types import Array

_TOL = max(10.0, min(100.0, EPS**-0.125)) * EPS
_TINY = 2.0**-1022
_SWEEPS = 6
"""Times n^2 rotations: more than that is no convergence."""


@njit(nogil=True, error_model="numpy")
def diagonalise(d: Array, e: Array, n: int, left: Array, right: Array) -> bool:
    """diag(d[:n]) + superdiag(e[:n-1]) = left^T diag(d) right, d >= 0 and falling; False without convergence.

    d, e: float64 [6], overwritten. left, right: float64 [6, 6], row j receives singular vector j.
    """
    left[:] = 0.0
    right[:] = 0.0
    for i in range(n):
        left[i, i] = right[i, i] = 1.0
    if not _iterate(d, e, left, right, n):
        return False
    for i in range(n):
        if d[i] < 0.0:
            d[i] = -d[i]
            for k in range(WIDTH):
                right[i, k] *= -1.0
    _sort(d, left, right, n)
    return True


@njit(nogil=True, error_model="numpy")
def _threshold(d: Array, e: Array, n: int) -> float:
    """Off-diagonal entries up to this size count as zero."""
    mu = lowest = abs(d[0])
    for i in range(1, n):
        if lowest == 0.0:
            break
        mu = abs(d[i]) * (mu / (mu + abs(e[i - 1])))
        lowest = min(lowest, mu)
    return max(_TOL * (lowest / math.sqrt(float(n))), _SWEEPS * (n * (n * _TINY)))


@njit(nogil=True, error_model="numpy")
def _iterate(d: Array, e: Array, left: Array, right: Array, n: int) -> bool:  # noqa: C901 - LAPACK's own branches
    threshold = _threshold(d, e, n)
    down = True
    steps, rounds = -1, 0
    old_first, old_last = -2, -2
    last = n - 1
    while last > 0:
        if steps >= n:
            steps -= n
            rounds += 1
            if rounds >= _SWEEPS * n:
                return False
        first, largest, split = 0, abs(d[last]), False
        for k in range(last - 1, -1, -1):
            if abs(e[k]) <= threshold:
                e[k] = 0.0
                first, split = k + 1, True
                break
            largest = max(largest, abs(d[k]), abs(e[k]))
        if split and first == last:
            last -= 1
            continue
        if first == last - 1:
            small, large, right_s, right_c, left_s, left_c = decompose_pair(d[first], e[first], d[last])
            d[first], e[first], d[last] = large, 0.0, small
            turn_fused(right, first, last, right_c, right_s)
            turn_fused(left, first, last, left_c, left_s)
            last -= 2
            continue
        if first > old_last or last < old_first:  # a new block: chase the bulge from its large end
            down = abs(d[first]) >= abs(d[last])
        converged, smallest = _deflate(d, e, first, last, down)
        if converged:
            continue
        old_first, old_last = first, last
        steps += last - first
        shift = _shift(d, e, first, last, down, n, smallest, largest)
        if down:
            _sweep_down(d, e, left, right, first, last, shift)
            if abs(e[last - 1]) <= threshold:
                e[last - 1] = 0.0
        else:
            _sweep_up(d, e, left, right, first, last, shift)
            if abs(e[first]) <= threshold:
                e[first] = 0.0
    return True


@njit(nogil=True, error_model="numpy")
def _deflate(d: Array, e: Array, first: int, last: int, down: bool) -> tuple[bool, float]:
    """Whether an off-diagonal entry of the block was negligible (it is zero now), and a bound of its smallest value."""
    if down:
        if abs(e[last - 1]) <= _TOL * abs(d[last]):
            e[last - 1] = 0.0
            return True, 0.0
        mu = smallest = abs(d[first])
        for k in range(first, last):
            if abs(e[k]) <= _TOL * mu:
                e[k] = 0.0
                return True, 0.0
            mu = abs(d[k + 1]) * (mu / (mu + abs(e[k])))
            smallest = min(smallest, mu)
        return False, smallest
    if abs(e[first]) <= _TOL * abs(d[first]):
        e[first] = 0.0
        return True, 0.0
    mu = smallest = abs(d[last])
    for k in range(last - 1, first - 1, -1):
        if abs(e[k]) <= _TOL * mu:
            e[k] = 0.0
            return True, 0.0
        mu = abs(d[k]) * (mu / (mu + abs(e[k])))
        smallest = min(smallest, mu)
    return False, smallest


@njit(nogil=True, error_model="numpy")
def _shift(d: Array, e: Array, first: int, last: int, down: bool, n: int, smallest: float, largest: float) -> float:
    if n * _TOL * (smallest / largest) <= max(EPS, 0.01 * _TOL):
        return 0.0  # a shift would cost the smallest value its relative accuracy
    if down:
        far = abs(d[first])
        shift = smaller_value(d[last - 1], e[last - 1], d[last])
    else:
        far = abs(d[last])
        shift = smaller_value(d[first], e[first], d[first + 1])
    if far > 0.0 and (shift / far) * (shift / far) < EPS:
        return 0.0
    return shift


@njit(nogil=True, error_model="numpy")
def _sweep_down(d: Array, e: Array, left: Array, right: Array, first: int, last: int, shift: float) -> None:
    if shift == 0.0:
        c = old_c = 1.0
        old_s = 0.0
        for i in range(first, last):
            c, s, r = rotation(d[i] * c, e[i])
            if i > first:
                e[i - 1] = old_s * r
            old_c, old_s, d[i] = rotation(old_c * r, d[i + 1] * s)
            turn(right, i, i + 1, c, s)
            turn(left, i, i + 1, old_c, old_s)
        h = d[last] * c
        d[last] = h * old_c
        e[last - 1] = h * old_s
        return
    f = (abs(d[first]) - shift) * (math.copysign(1.0, d[first]) + shift / d[first])
    g = e[first]
    for i in range(first, last):
        c, s, r = rotation(f, g)
        if i > first:
            e[i - 1] = r
        f = c * d[i] + s * e[i]
        e[i] = c * e[i] - s * d[i]
        g = s * d[i + 1]
        d[i + 1] = c * d[i + 1]
        turn(right, i, i + 1, c, s)
        c, s, d[i] = rotation(f, g)
        f = c * e[i] + s * d[i + 1]
        d[i + 1] = c * d[i + 1] - s * e[i]
        if i < last - 1:
            g = s * e[i + 1]
            e[i + 1] = c * e[i + 1]
        turn(left, i, i + 1, c, s)
    e[last - 1] = f


@njit(nogil=True, error_model="numpy")
def _sweep_up(d: Array, e: Array, left: Array, right: Array, first: int, last: int, shift: float) -> None:
    if shift == 0.0:
        c = old_c = 1.0
        old_s = 0.0
        for i in range(last, first, -1):
            c, s, r = rotation(d[i] * c, e[i - 1])
            if i < last:
                e[i] = old_s * r
            old_c, old_s, d[i] = rotation(old_c * r, d[i - 1] * s)
            turn(left, i - 1, i, c, -s)
            turn(right, i - 1, i, old_c, -old_s)
        h = d[first] * c
        d[first] = h * old_c
        e[first] = h * old_s
        return
    f = (abs(d[last]) - shift) * (math.copysign(1.0, d[last]) + shift / d[last])
    g = e[last - 1]
    for i in range(last, first, -1):
        c, s, r = rotation(f, g)
        if i < last:
            e[i] = r
        f = c * d[i] + s * e[i - 1]
        e[i - 1] = c * e[i - 1] - s * d[i]
        g = s * d[i - 1]
        d[i - 1] = c * d[i - 1]
        turn(left, i - 1, i, c, -s)
        c, s, d[i] = rotation(f, g)
        f = c * e[i - 1] + s * d[i - 1]
        d[i - 1] = c * d[i - 1] - s * e[i - 1]
        if i > first + 1:
            g = s * e[i - 2]
            e[i - 2] = c * e[i - 2]
        turn(right, i - 1, i, c, -s)
    e[first] = f


@njit(nogil=True, error_model="numpy")
def _sort(d: Array, left: Array, right: Array, n: int) -> None:
    """Three selection sorts in a row, since which vectors of equal values end up where depends on them."""
    for i in range(n - 1):
        end = n - 1 - i
        at = 0
        for j in range(1, end + 1):
            if d[j] <= d[at]:
                at = j
        _swap(d, left, right, at, end)
    for i in range(n):
        at = i
        for j in range(i + 1, n):
            if d[j] < d[at]:
                at = j
        _swap(d, left, right, at, i)
    for i in range(n - 1):
        at = i
        for j in range(i + 1, n):
            if d[j] > d[at]:
                at = j
        _swap(d, left, right, at, i)


@njit(nogil=True, error_model="numpy")
def _swap(d: Array, left: Array, right: Array, i: int, j: int) -> None:
    if i == j:
        return
    d[i], d[j] = d[j], d[i]
    for k in range(WIDTH):
        left[i, k], left[j, k] = left[j, k], left[i, k]
        right[i, k], right[j, k] = right[j, k], right[i, k]
