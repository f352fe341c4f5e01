"""Operational space torques with the operations of robosuite's controller, each rounded as the original rounds it."""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from embodied_rl.sim.mujoco.gains import OscGains
from embodied_rl.sim.mujoco.lapack.inverse import N, invert
from embodied_rl.sim.mujoco.lapack.products import add_columns, dot_column
from embodied_rl.sim.mujoco.lapack.pseudo_inverse import Work, make_work, pseudo_inverse
from embodied_rl.sim.mujoco.lapack.rounding import fma
from embodied_rl.types import Array


class Scratch(NamedTuple):
    """Memory of `torques` and `osc.torque_fast` for one call at a time; pivots int64, all else float64.

    force, bias and torque are the kernel's, between calls.
    """

    pivots: Array
    column: Array
    inverse: Array
    reach: Array
    core: Array
    block: Array
    lambda_full: Array
    lambda_part: Array
    spread: Array
    dynamic: Array
    null: Array
    by_column: Array
    wrench: Array
    pull: Array
    pulled: Array
    away: Array
    bias: Array
    torque: Array
    force: Array
    work: Work


def make_scratch() -> Scratch:
    """Memory for one call at a time."""
    return Scratch(
        np.zeros(N, np.int64),
        np.zeros(N),
        np.zeros((N, N)),
        np.zeros((6, N)),
        np.zeros((6, 6)),
        np.zeros((6, 6)),
        np.zeros((6, 6)),
        np.zeros((6, 6)),
        np.zeros((N, 6)),
        np.zeros((N, 6)),
        np.zeros((N, N)),
        np.zeros((N, 6)),
        np.zeros(6),
        np.zeros(N),
        np.zeros(N),
        np.zeros(N),
        np.zeros(N),
        np.zeros(N),
        np.zeros(6),
        make_work(),
    )


@njit(nogil=True, error_model="numpy")
def torques(
    gains: OscGains,
    force: Array,
    jac: Array,
    mass: Array,
    bias: Array,
    posture: Array,
    q: Array,
    qd: Array,
    out: Array,
    s: Scratch,
) -> None:
    """Joint torques out [7] (N m). force [6], jac [6, 7], mass [7, 7]; bias, posture, q, qd [7]; `s`: scratch."""
    s.inverse[:] = mass
    invert(s.inverse, s.pivots, s.column)
    _project(jac, s)
    s.block[:] = s.core
    pseudo_inverse(s.block, 6, s.lambda_full, s.work)
    for part in range(0, 6, 3):  # forces, then torques
        for i in range(3):
            for j in range(3):
                s.block[i, j] = s.core[part + i, part + j]
            s.wrench[part + i] = 0.0
        pseudo_inverse(s.block, 3, s.lambda_part, s.work)
        add_columns(s.lambda_part, 0, 0, 3, 3, 1.0, force[part : part + 3], False, s.wrench, part)
    _null_space(jac, s)
    for i in range(N):
        s.pull[i] = gains.null_kp * (posture[i] - q[i]) - gains.null_kd * qd[i]
        s.pulled[i] = s.away[i] = 0.0
    add_columns(mass, 0, 0, N, N, 1.0, s.pull, False, s.pulled, 0)
    add_columns(s.null, 0, 0, N, N, 1.0, s.pulled, False, s.away, 0)
    for i in range(N):
        for j in range(6):
            s.by_column[i, j] = jac[j, i]
    for i in range(N):
        out[i] = (dot_column(s.by_column, 0, 0, 6, N, i, s.wrench) + bias[i]) + s.away[i]


@njit(nogil=True, error_model="numpy")
def _project(jac: Array, s: Scratch) -> None:
    """core = J M^-1 J^T (by columns) and spread = M^-1 J^T (by rows): chains of fused operations."""
    for i in range(6):
        for j in range(N):
            total = spread = 0.0
            for k in range(N):
                total = fma(jac[i, k], s.inverse[j, k], total)
                spread = fma(s.inverse[k, j], jac[i, k], spread)
            s.reach[i, j] = total
            s.spread[j, i] = spread
    for i in range(6):
        for j in range(6):
            total = 0.0
            for k in range(N):
                total = fma(s.reach[i, k], jac[j, k], total)
            s.core[j, i] = total


@njit(nogil=True, error_model="numpy")
def _null_space(jac: Array, s: Scratch) -> None:
    """null = I - M^-1 J^T lambda J, by rows."""
    for i in range(N):
        for j in range(6):
            total = 0.0
            for k in range(6):
                total = fma(s.spread[i, k], s.lambda_full[j, k], total)
            s.dynamic[i, j] = total
        for j in range(N):
            total = 0.0
            for k in range(6):
                total = fma(s.dynamic[i, k], jac[k, j], total)
            s.null[i, j] = (1.0 if i == j else 0.0) - total
