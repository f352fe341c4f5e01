"""Plane rotations and the singular values of 2 by 2 triangles, as LAPACK computes them (dlartg, dlas2, dlasv2)."""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

import math

from numba import njit

from embodied_rl.sim.mujoco.lapack.rounding import fma
from embodied_rl.types import Array

EPS = 2.0**-53
WIDTH = 6
"""Of the matrices that are rotated; smaller problems leave the rest of their rows zero."""
_SAFE_MIN = 2.0**-1022
_SAFE_MAX = 2.0**1022
_ROOT_MIN = math.sqrt(_SAFE_MIN)
_ROOT_MAX = math.sqrt(_SAFE_MAX / 2)


@njit(nogil=True, error_model="numpy")
def rotation(f: float, g: float) -> tuple[float, float, float]:
    """c, s, r with [c s; -s c] [f; g] = [r; 0]."""
    size_f, size_g = abs(f), abs(g)
    if g == 0.0:
        return 1.0, 0.0, f
    if f == 0.0:
        return 0.0, math.copysign(1.0, g), size_g
    if _ROOT_MIN < size_f < _ROOT_MAX and _ROOT_MIN < size_g < _ROOT_MAX:
        length = math.sqrt(f * f + g * g)
        r = math.copysign(length, f)
        return size_f / length, g / r, r
    unit = min(_SAFE_MAX, max(_SAFE_MIN, size_f, size_g))
    f, g = f / unit, g / unit
    length = math.sqrt(f * f + g * g)
    r = math.copysign(length, f)
    return abs(f) / length, g / r, r * unit


@njit(nogil=True, error_model="numpy")
def turn(m: Array, i: int, j: int, c: float, s: float) -> None:
    """Rotate rows i and j of m [., 6] into each other: LAPACK's dlasr, without fused operations."""
    if c == 1.0 and s == 0.0:
        return
    for k in range(WIDTH):
        x, y = m[i, k], m[j, k]
        m[j, k] = c * y - s * x
        m[i, k] = s * y + c * x


@njit(nogil=True, error_model="numpy")
def turn_fused(m: Array, i: int, j: int, c: float, s: float) -> None:
    """Rotate rows i and j of m [., 6] into each other: OpenBLAS's drot."""
    for k in range(WIDTH):
        x, y = m[i, k], m[j, k]
        m[i, k] = fma(c, x, s * y)
        m[j, k] = fma(c, y, -(s * x))


@njit(nogil=True, error_model="numpy")
def smaller_value(f: float, g: float, h: float) -> float:
    """The smaller singular value of [f g; 0 h]."""
    f, g, h = abs(f), abs(g), abs(h)
    low, high = min(f, h), max(f, h)
    if low == 0.0:
        return 0.0
    total, gap = 1.0 + low / high, (high - low) / high
    if g < high:
        ratio = (g / high) * (g / high)
        return low * (2.0 / (math.sqrt(total * total + ratio) + math.sqrt(gap * gap + ratio)))
    ratio = high / g
    if ratio == 0.0:
        return (low * high) / g
    wide, narrow = total * ratio, gap * ratio
    half = (low * (1.0 / (math.sqrt(1.0 + wide * wide) + math.sqrt(1.0 + narrow * narrow)))) * ratio
    return half + half


@njit(nogil=True, error_model="numpy")
def decompose_pair(f: float, g: float, h: float) -> tuple[float, float, float, float, float, float]:
    """Singular values of [f g; 0 h], and the rotations: smaller, larger, right s, right c, left s, left c."""
    ft, fa, ht, ha = f, abs(f), h, abs(h)
    swapped = ha > fa
    if swapped:
        ft, fa, ht, ha = ht, ha, ft, fa
    largest = 3 if swapped else 1
    ga = abs(g)
    small, large = ha, fa
    left_c = right_c = 1.0
    left_s = right_s = 0.0
    if ga != 0.0:
        dominant = False
        if ga > fa:
            largest = 2
            dominant = fa / ga < EPS
        if dominant:
            large = ga
            small = fa / (ga / ha) if ha > 1.0 else (fa / ga) * ha
            left_s, right_s, right_c = ht / g, 1.0, ft / g
        else:
            small, large, right_s, right_c, left_s, left_c = _general_pair(ft, fa, ht, ha, g)
    if swapped:
        left_c, left_s, right_c, right_s = right_s, right_c, left_s, left_c
    one = math.copysign(1.0, right_c if largest == 1 else right_s)
    two = math.copysign(1.0, left_s if largest == 3 else left_c)
    sign = one * two * math.copysign(1.0, f if largest == 1 else (g if largest == 2 else h))
    large = math.copysign(large, sign)
    small = math.copysign(small, sign * math.copysign(1.0, f) * math.copysign(1.0, h))
    return small, large, right_s, right_c, left_s, left_c


@njit(nogil=True, error_model="numpy")
def _general_pair(
    f: float, size_f: float, h: float, size_h: float, g: float
) -> tuple[float, float, float, float, float, float]:
    """`decompose_pair` for |f| >= |h| and g that is neither zero nor dominant; values without sign."""
    gap = size_f - size_h
    part = 1.0 if gap == size_f else gap / size_f
    m = g / f
    t = 2.0 - part
    mm = m * m
    s = math.sqrt(t * t + mm)
    r = abs(m) if part == 0.0 else math.sqrt(part * part + mm)
    a = 0.5 * (s + r)
    if mm == 0.0:  # m is denormal
        if part == 0.0:
            t = math.copysign(2.0, f) * math.copysign(1.0, g)
        else:
            t = g / math.copysign(gap, f) + m / t
    else:
        t = (m / (s + t) + m / (r + part)) * (1.0 + a)
    length = math.sqrt(t * t + 4.0)
    right_c, right_s = 2.0 / length, t / length
    left_c, left_s = (right_c + right_s * m) / a, (h / f) * right_s / a
    return size_h / a, size_f * a, right_s, right_c, left_s, left_c
