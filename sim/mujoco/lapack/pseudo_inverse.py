"""The pseudo-inverse of a small square matrix as numba's `np.linalg.pinv` computes it, over LAPACK's dgesdd.

Householder reflections to an upper bidiagonal matrix (dgebd2), its singular values (bidiagonal.py), the reflections
applied to its singular vectors (dormbr), and a product.
"""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from embodied_rl.sim.mujoco.lapack.bidiagonal import diagonalise
from embodied_rl.sim.mujoco.lapack.products import add_columns, dot_column
from embodied_rl.sim.mujoco.lapack.rotations import WIDTH
from embodied_rl.sim.mujoco.lapack.rounding import fma, tail_norm
from embodied_rl.types import Array

_CUT = 1e-15
"""Singular values under this part of the largest one count as zero (numba's default)."""


class Work(NamedTuple):
    """Scratch memory of `pseudo_inverse`: vectors [6], matrices [6, 6]."""

    d: Array
    e: Array
    tau_left: Array
    tau_right: Array
    v: Array
    product: Array
    left: Array
    right: Array
    columns: Array


def make_work() -> Work:
    """Scratch memory for one call at a time."""
    square = (WIDTH, WIDTH)
    return Work(
        np.zeros(WIDTH),
        np.zeros(WIDTH),
        np.zeros(WIDTH),
        np.zeros(WIDTH),
        np.zeros(WIDTH),
        np.zeros(WIDTH),
        np.zeros(square),
        np.zeros(square),
        np.zeros(square),
    )


@njit(nogil=True, error_model="numpy")
def pseudo_inverse(a: Array, n: int, out: Array, work: Work) -> None:
    """out[:n, :n] = pinv(a[:n, :n]), both float64 [6, 6] stored by columns, n >= 2; NaN without convergence.

    `a` is overwritten.
    """
    d, columns, left, right = work.d, work.columns, work.left, work.right
    _bidiagonalise(a, n, work)
    if not diagonalise(d, work.e, n, left, right):
        out[:] = np.nan
        return
    _apply_left(a, n, left, work)
    for i in range(n):
        for j in range(n):
            columns[i, j] = right[j, i]
    _apply_right(a, n, columns, work)
    rank = 0
    cut = d[0] * _CUT
    for k in range(n):
        if d[k] > cut:
            d[k] = 1.0 / d[k]
            rank = k
    rank += 1
    for i in range(n):
        for k in range(rank):
            columns[i, k] *= d[k]
    for j in range(n):
        for i in range(n):
            total = 0.0
            for k in range(rank):
                total = fma(columns[i, k], left[k, j], total)
            out[j, i] = total


@njit(nogil=True, error_model="numpy")
def _reflector(v: Array, n: int) -> tuple[float, float]:
    """beta and tau of the reflection that takes v[:n] to [beta, 0, ...]; v becomes its vector, which begins with 1."""
    alpha, length = v[0], tail_norm(v, n)
    v[0] = 1.0
    if length == 0.0:
        return alpha, 0.0
    high, low = max(abs(alpha), length), min(abs(alpha), length)
    ratio = low / high
    beta = -math.copysign(high * math.sqrt(1.0 + ratio * ratio), alpha)
    scale = 1.0 / (alpha - beta)
    for i in range(1, n):
        v[i] *= scale
    return beta, (beta - alpha) / beta


@njit(nogil=True, error_model="numpy")
def _reflect_rows(c: Array, row: int, col: int, m: int, n: int, tau: float, v: Array, product: Array) -> None:
    """C -= tau v (C^T v)^T for the m by n block of `c` at (row, col)."""
    if tau == 0.0:
        return
    while m > 0 and v[m - 1] == 0.0:
        m -= 1
    n = _used_columns(c, row, col, m, n)
    for j in range(n):
        product[j] = dot_column(c, row, col, m, n, j, v)
    for j in range(n):
        scale = -tau * product[j]
        for i in range(m):
            c[col + j, row + i] += scale * v[i]


@njit(nogil=True, error_model="numpy")
def _reflect_columns(c: Array, row: int, col: int, m: int, n: int, tau: float, v: Array, product: Array) -> None:
    """C -= tau (C v) v^T for the m by n block of `c` at (row, col)."""
    if tau == 0.0:
        return
    while n > 0 and v[n - 1] == 0.0:
        n -= 1
    m = _used_rows(c, row, col, m, n)
    for i in range(m):
        product[i] = 0.0
    add_columns(c, row, col, m, n, 1.0, v, True, product, 0)
    for j in range(n):
        scale = -tau * v[j]
        for i in range(m):
            c[col + j, row + i] += scale * product[i]


@njit(nogil=True, error_model="numpy")
def _used_columns(c: Array, row: int, col: int, m: int, n: int) -> int:
    """n without trailing columns of zeros: LAPACK leaves them out, which changes how the others are grouped."""
    while n > 0:
        for i in range(m):
            if c[col + n - 1, row + i] != 0.0:
                return n
        n -= 1
    return 0


@njit(nogil=True, error_model="numpy")
def _used_rows(c: Array, row: int, col: int, m: int, n: int) -> int:
    """m without trailing rows of zeros."""
    while m > 0:
        for j in range(n):
            if c[col + j, row + m - 1] != 0.0:
                return m
        m -= 1
    return 0


@njit(nogil=True, error_model="numpy")
def _bidiagonalise(a: Array, n: int, work: Work) -> None:
    """Q^T A P = diag(d) + superdiag(e); the vectors of Q and P, from their second entry, replace what became zero."""
    d, e, v = work.d, work.e, work.v
    for i in range(n):
        for k in range(n - i):
            v[k] = a[i, i + k]
        d[i], tau = _reflector(v, n - i)
        work.tau_left[i] = tau
        for k in range(1, n - i):
            a[i, i + k] = v[k]
        if i == n - 1:
            break
        _reflect_rows(a, i, i + 1, n - i, n - i - 1, tau, v, work.product)
        for k in range(n - i - 1):
            v[k] = a[i + 1 + k, i]
        e[i], tau = _reflector(v, n - i - 1)
        work.tau_right[i] = tau
        for k in range(1, n - i - 1):
            a[i + 1 + k, i] = v[k]
        _reflect_columns(a, i + 1, i + 1, n - i - 1, n - i - 1, tau, v, work.product)


@njit(nogil=True, error_model="numpy")
def _apply_left(a: Array, n: int, c: Array, work: Work) -> None:
    """C = Q C, the last reflection first."""
    v = work.v
    v[0] = 1.0
    for i in range(n - 1, -1, -1):
        for k in range(1, n - i):
            v[k] = a[i, i + k]
        _reflect_rows(c, i, 0, n - i, n, work.tau_left[i], v, work.product)


@njit(nogil=True, error_model="numpy")
def _apply_right(a: Array, n: int, c: Array, work: Work) -> None:
    """C = C P^T, the last reflection first; the first column is left alone."""
    v = work.v
    v[0] = 1.0
    for i in range(n - 2, -1, -1):
        for k in range(1, n - i - 1):
            v[k] = a[i + 1 + k, i]
        _reflect_columns(c, 0, i + 1, n, n - i - 1, work.tau_right[i], v, work.product)
