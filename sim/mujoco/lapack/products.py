"""Products with vectors in the order of OpenBLAS's Haswell kernels.

Matrices are stored by columns, as LAPACK stores them: a[j, i] is the entry in row i and column j. A matrix product
needs no function here: each entry is a chain of fused multiply-adds over the inner index, from zero.
"""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

from numba import njit

from embodied_rl.sim.mujoco.lapack.rounding import fma
from embodied_rl.types import Array


@njit(nogil=True, error_model="numpy")
def add_columns(
    a: Array, row: int, col: int, m: int, n: int, alpha: float, x: Array, strided: bool, y: Array, at: int
) -> None:
    """y[at:at+m] += alpha A x[:n], A the m by n block of `a` at (row, col).

    strided: the original's x is not contiguous, for which OpenBLAS takes the last columns one by one.
    """
    blocked = m - m % 4
    fours = n - n % 4
    for i in range(blocked):
        total = y[at + i]
        for j in range(0, fours, 4):
            even = fma(a[col + j + 2, row + i], x[j + 2], a[col + j, row + i] * x[j])
            odd = fma(a[col + j + 3, row + i], x[j + 3], a[col + j + 1, row + i] * x[j + 1])
            total = fma(alpha, even + odd, total)
        j = fours
        if n - j >= 2 and not strided:
            total = fma(alpha, a[col + j, row + i] * x[j] + a[col + j + 1, row + i] * x[j + 1], total)
            j += 2
        while j < n:
            total += a[col + j, row + i] * (x[j] * alpha)
            j += 1
        y[at + i] = total
    for i in range(blocked, m):
        rest = 0.0
        for j in range(n):
            rest += a[col + j, row + i] * x[j]
        y[at + i] += alpha * rest


@njit(nogil=True, error_model="numpy")
def dot_column(a: Array, row: int, col: int, m: int, n: int, j: int, x: Array) -> float:
    """Entry j of A^T x[:m], A the m by n block of `a` at (row, col)."""
    at = col + j
    blocked = m - m % 4
    total = 0.0
    if blocked and j < n - n % 4:
        s0 = s1 = s2 = s3 = 0.0
        for i in range(0, blocked, 4):
            s0 = fma(a[at, row + i], x[i], s0)
            s1 = fma(a[at, row + i + 1], x[i + 1], s1)
            s2 = fma(a[at, row + i + 2], x[i + 2], s2)
            s3 = fma(a[at, row + i + 3], x[i + 3], s3)
        total = (s0 + s2) + (s1 + s3)
    elif blocked and n % 4 >= 2 and j < n - n % 2:
        s0 = s1 = 0.0
        for i in range(0, blocked, 2):
            s0 += a[at, row + i] * x[i]
            s1 += a[at, row + i + 1] * x[i + 1]
        total = s0 + s1
    elif blocked:
        s0 = s1 = s2 = s3 = 0.0
        for i in range(0, blocked, 4):
            s0 += a[at, row + i] * x[i]
            s1 += a[at, row + i + 1] * x[i + 1]
            s2 += a[at, row + i + 2] * x[i + 2]
            s3 += a[at, row + i + 3] * x[i + 3]
        total = (s0 + s2) + (s1 + s3)
    i = blocked
    if m - i == 3:
        rest = fma(a[at, row + i], x[i], a[at, row + i + 1] * x[i + 1])
        return total + fma(a[at, row + i + 2], x[i + 2], rest)
    if m - i == 2:
        return total + fma(a[at, row + i], x[i], a[at, row + i + 1] * x[i + 1])
    if m - i == 1:
        return fma(a[at, row + i], x[i], total)
    return total


@njit(nogil=True, error_model="numpy")
def dot_strided(a: Array, row: int, x: Array, n: int) -> float:
    """Row `row` of `a` times x, over its first n columns."""
    even = odd = 0.0
    fours = n - n % 4
    for k in range(0, fours, 4):
        even += a[k, row] * x[k] + a[k + 2, row] * x[k + 2]
        odd += a[k + 1, row] * x[k + 1] + a[k + 3, row] * x[k + 3]
    for k in range(fours, n):
        even += a[k, row] * x[k]
    return even + odd
