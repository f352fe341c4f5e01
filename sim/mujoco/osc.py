"""Operational space control of the arm as LIBERO uses it (robosuite's OSC_POSE), without the GIL.

O. Khatib, "A unified approach for motion and force control of robot manipulators", 1987, with position and orientation
decoupled. With J [6,7] the Jacobian of the grip site, M [7,7] the arm's inertia, f the desired force and torque:
    lambda_pos = (J_pos M^-1 J_pos^T)^-1, likewise lambda_ori, and lambda of the whole J
    tau = J^T [lambda_pos f_pos; lambda_ori f_ori] + bias + N^T M z,   N = I - M^-1 J^T lambda J
where z pulls the joints towards their initial posture. Two forms of the same numbers: lapack/torque.py does robosuite's
operations one by one (bit for bit); `torque_fast` here uses Cholesky factors (within 1e-7 N m).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.sim.mujoco.gains import ARM, OscGains
from embodied_rl.sim.mujoco.lapack.torque import Scratch
from embodied_rl.types import Array


@njit(nogil=True, error_model="numpy")
def delta_rotation(v: Array, out: Array) -> None:
    """Rotation matrix [3,3] of axis-angle v [3] (rad), rounded as robosuite rounds it.

    Its quaternion and their products are float32; the diagonal is summed in float64.
    """
    angle = math.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2])
    out[:] = 0.0
    out[0, 0] = out[1, 1] = out[2, 2] = 1.0
    if angle == 0.0:
        return
    q = np.empty(4, np.float32)
    q[0] = np.float32(math.cos(angle / 2.0))
    for i in range(3):
        q[i + 1] = np.float32(v[i] / angle * math.sin(angle / 2.0))
    total = 0.0  # OpenBLAS's sdot, which the original calls: float32 products summed in float64
    for i in range(4):
        total += np.float64(q[i] * q[i])
    scale = math.sqrt(2.0 / np.float64(np.float32(total)))
    for i in range(4):
        q[i] = np.float32(np.float64(q[i]) * scale)
    xx, yy, zz = np.float64(q[1] * q[1]), np.float64(q[2] * q[2]), np.float64(q[3] * q[3])
    out[0, 0], out[1, 1], out[2, 2] = 1.0 - yy - zz, 1.0 - xx - zz, 1.0 - xx - yy
    out[0, 1] = np.float32(q[1] * q[2] - q[3] * q[0])
    out[1, 0] = np.float32(q[1] * q[2] + q[3] * q[0])
    out[0, 2] = np.float32(q[1] * q[3] + q[2] * q[0])
    out[2, 0] = np.float32(q[1] * q[3] - q[2] * q[0])
    out[1, 2] = np.float32(q[2] * q[3] - q[1] * q[0])
    out[2, 1] = np.float32(q[2] * q[3] + q[1] * q[0])


@njit(nogil=True, error_model="numpy")
def desired_force(
    gains: OscGains, goal_pos: Array, goal_ori: Array, pos: Array, ori: Array, velocity: Array, out: Array
) -> None:
    """Spring and damper towards the goal pose: out [6], before the multiplication with lambda."""
    for i in range(3):
        out[i] = (goal_pos[i] - pos[i]) * gains.kp + (-velocity[i]) * gains.kd
    for i in range(3):
        a, b = (i + 1) % 3, (i + 2) % 3
        error = 0.0
        for k in range(3):
            error += ori[a, k] * goal_ori[b, k] - ori[b, k] * goal_ori[a, k]
        out[3 + i] = 0.5 * error * gains.kp + (-velocity[3 + i]) * gains.kd


@njit(nogil=True, error_model="numpy")
def _copy(a: Array, corner: int, rows: int, columns: int, out: Array) -> None:
    """The block of `a` at (corner, corner) to out's first; a[:] = b looks first whether they overlap."""
    for i in range(rows):
        for j in range(columns):
            out[i, j] = a[corner + i, corner + j]


@njit(nogil=True, error_model="numpy")
def _cholesky(a: Array, n: int) -> None:
    """Lower factor in place; the upper part is left alone."""
    for j in range(n):
        for i in range(j, n):
            x = a[i, j]
            for k in range(j):
                x -= a[i, k] * a[j, k]
            a[i, j] = math.sqrt(x) if i == j else x / a[j, j]


@njit(nogil=True, error_model="numpy")
def _solve(factor: Array, n: int, b: Array) -> None:
    """Solve L L^T x = b in place."""
    for i in range(n):
        x = b[i]
        for k in range(i):
            x -= factor[i, k] * b[k]
        b[i] = x / factor[i, i]
    for i in range(n - 1, -1, -1):
        x = b[i]
        for k in range(i + 1, n):
            x -= factor[k, i] * b[k]
        b[i] = x / factor[i, i]


@njit(nogil=True, error_model="numpy")
def torque_fast(
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
    """Joint torques out [7] by Cholesky factors: N^T M z = M z - J^T lambda J z, so M^-1 is never formed.

    Needs J of full rank; at an exactly singular pose the result is not finite and the episode counts as failed.
    s: scratch, whatever it holds; force, bias and out may be its members of these names (out: torque), and no others.
    """
    factor, moved, full, pos, ori = s.inverse, s.reach, s.core, s.block, s.lambda_part
    wrench, z, drift = s.wrench, s.pull, s.pulled
    _copy(mass, 0, ARM, ARM, factor)
    _copy(jac, 0, 6, ARM, moved)
    for i in range(6):
        wrench[i] = force[i]
    _cholesky(factor, ARM)
    for r in range(6):
        _solve(factor, ARM, moved[r])
    for i in range(6):
        for j in range(6):
            x = 0.0
            for k in range(ARM):
                x += jac[i, k] * moved[j, k]
            full[i, j] = x
    _copy(full, 0, 3, 3, pos)
    _copy(full, 3, 3, 3, ori)
    _cholesky(pos, 3)
    _cholesky(ori, 3)
    _cholesky(full, 6)
    _solve(pos, 3, wrench[:3])
    _solve(ori, 3, wrench[3:])
    for i in range(ARM):
        z[i] = gains.null_kp * (posture[i] - q[i]) - gains.null_kd * qd[i]
    for i in range(6):
        x = 0.0
        for k in range(ARM):
            x += jac[i, k] * z[k]
        drift[i] = x
    _solve(full, 6, drift)
    for k in range(ARM):
        x = bias[k]
        for i in range(ARM):
            x += mass[k, i] * z[i]
        for i in range(6):
            x += jac[i, k] * (wrench[i] - drift[i])
        out[k] = x
