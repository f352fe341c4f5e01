"""Operational space control of the arm as LIBERO uses it (robosuite's OSC_POSE), without the GIL.

O. Khatib, "A unified approach for motion and force control of robot manipulators", 1987, with position and orientation
decoupled. With J [6,7] the Jacobian of the grip site, M [7,7] the arm's inertia, f the desired force and torque:
    lambda_pos = (J_pos M^-1 J_pos^T)^-1, likewise lambda_ori, and lambda of the whole J
    tau = J^T [lambda_pos f_pos; lambda_ori f_ori] + bias + N^T M z,   N = I - M^-1 J^T lambda J
where z pulls the joints towards their initial posture. Two forms of the same numbers:
`torque_exact` calls LAPACK in robosuite's order (bit for bit); `torque_fast` uses Cholesky factors (7e-8 N m apart).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.types import Array

KP = 150.0
KD = 2.0 * math.sqrt(KP)
"""Critically damped, for all six directions (1/s^2, 1/s)."""
NULL_KP = 10.0
POSITION_SCALE = 0.05
"""Metres that an action of 1 asks for."""
ROTATION_SCALE = 0.5
"""Radians that an action of 1 asks for."""
GRIPPER_SPEED = 0.01
"""Change of the gripper command, which lives in [-1, 1], in one substep."""
ARM = 7


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
def desired_force(goal_pos: Array, goal_ori: Array, pos: Array, ori: Array, velocity: Array, out: Array) -> None:
    """Spring and damper towards the goal pose: out [6], before the multiplication with lambda."""
    for i in range(3):
        out[i] = (goal_pos[i] - pos[i]) * KP + (-velocity[i]) * KD
    for i in range(3):
        a, b = (i + 1) % 3, (i + 2) % 3
        error = 0.0
        for k in range(3):
            error += ori[a, k] * goal_ori[b, k] - ori[b, k] * goal_ori[a, k]
        out[3 + i] = 0.5 * error * KP + (-velocity[3 + i]) * KD


@njit(nogil=True)
def torque_exact(
    force: Array, jac: Array, mass: Array, bias: Array, posture: Array, q: Array, qd: Array, out: Array,
) -> None:
    """Joint torques out [7], with inverses and products in robosuite's order."""
    inverse = np.linalg.inv(mass)
    jac_pos, jac_ori = jac[:3].copy(), jac[3:].copy()
    lambda_full = np.linalg.pinv(np.dot(np.dot(jac, inverse), jac.transpose()))
    lambda_pos = np.linalg.pinv(np.dot(np.dot(jac_pos, inverse), jac_pos.transpose()))
    lambda_ori = np.linalg.pinv(np.dot(np.dot(jac_ori, inverse), jac_ori.transpose()))
    jac_inverse = np.dot(np.dot(inverse, jac.transpose()), lambda_full)
    null = np.eye(ARM) - np.dot(jac_inverse, jac)
    wrench = np.concatenate((np.dot(lambda_pos, force[:3].copy()), np.dot(lambda_ori, force[3:].copy())))
    # the original's matrix is stored by columns; BLAS rounds the two layouts of a symmetric matrix differently
    pull = np.dot(mass.transpose(), NULL_KP * (posture - q) - math.sqrt(NULL_KP) * 2.0 * qd)
    out[:] = np.dot(jac.transpose(), wrench) + bias
    out += np.dot(null.transpose(), pull)


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
    force: Array, jac: Array, mass: Array, bias: Array, posture: Array, q: Array, qd: Array, out: Array,
) -> None:
    """Joint torques out [7] by Cholesky factors: N^T M z = M z - J^T lambda J z, so M^-1 is never formed.

    Needs J of full rank; at an exactly singular pose the result is not finite and the episode counts as failed.
    """
    factor, moved = mass.copy(), jac.copy()
    full, pos, ori = np.empty((6, 6)), np.empty((3, 3)), np.empty((3, 3))
    wrench, z, drift = force.copy(), np.empty(ARM), np.empty(6)
    _cholesky(factor, ARM)
    for r in range(6):
        _solve(factor, ARM, moved[r])
    for i in range(6):
        for j in range(6):
            x = 0.0
            for k in range(ARM):
                x += jac[i, k] * moved[j, k]
            full[i, j] = x
    pos[:], ori[:] = full[:3, :3], full[3:, 3:]
    _cholesky(pos, 3)
    _cholesky(ori, 3)
    _cholesky(full, 6)
    _solve(pos, 3, wrench[:3])
    _solve(ori, 3, wrench[3:])
    for i in range(ARM):
        z[i] = NULL_KP * (posture[i] - q[i]) - 2.0 * math.sqrt(NULL_KP) * qd[i]
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
