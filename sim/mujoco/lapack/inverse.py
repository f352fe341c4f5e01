"""The inverse of the arm's 7 by 7 inertia by LU factors with row pivots, in the order of OpenBLAS and LAPACK
(dgetri)."""

from __future__ import annotations

from numba import njit

from embodied_rl.sim.mujoco.lapack.products import add_columns, dot_strided
from embodied_rl.types import Array

N = 7


@njit(nogil=True, error_model="numpy")
def invert(a: Array, pivots: Array, column: Array) -> None:
    """Replace a, float64 [7, 7] stored by columns, by its inverse; not finite when it is singular.

    pivots int64 [7], column float64 [7]: scratch.
    """
    _factor(a, pivots, column)
    _invert_upper(a, column)
    for j in range(N - 2, -1, -1):
        for i in range(j + 1, N):
            column[i - j - 1] = a[j, i]
            a[j, i] = 0.0
        add_columns(a, 0, j + 1, N, N - j - 1, -1.0, column, False, a[j], 0)
    for j in range(N - 2, -1, -1):
        other = pivots[j]
        if other != j:
            for i in range(N):
                a[j, i], a[other, i] = a[other, i], a[j, i]


@njit(nogil=True, error_model="numpy")
def _factor(a: Array, pivots: Array, column: Array) -> None:
    """Left-looking LU: each column is finished before the next one is touched."""
    for j in range(N):
        for i in range(N):
            column[i] = a[j, i]
        for i in range(j):
            other = pivots[i]
            column[i], column[other] = column[other], column[i]
        for i in range(1, j):
            column[i] -= dot_strided(a, i, column, i)
        add_columns(a, j, 0, N - j, j, -1.0, column, False, column, j)
        top = j
        for i in range(j + 1, N):
            if abs(column[i]) > abs(column[top]):
                top = i
        pivots[j] = top
        if top != j:
            column[j], column[top] = column[top], column[j]
            for k in range(j):
                a[k, j], a[k, top] = a[k, top], a[k, j]
        scale = 1.0 / column[j]
        for i in range(N):
            a[j, i] = column[i] * scale if i > j else column[i]


@njit(nogil=True, error_model="numpy")
def _invert_upper(a: Array, column: Array) -> None:
    for j in range(N):
        for i in range(j):
            column[i] = a[j, i]
        diagonal = 1.0 / a[j, j]
        for k in range(j):
            factor = column[k]
            for i in range(k):
                column[i] += factor * a[k, i]
            column[k] = factor * a[k, k]
        a[j, j] = diagonal
        for k in range(j):
            a[j, k] = column[k] * -diagonal
