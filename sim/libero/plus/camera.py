"""Where LIBERO-plus puts `agentview`: turned about a point above the table's middle, moved nearer or away, and turned
on the spot. Every step is rounded to four digits, as in the official code, and so is the view that nothing moves."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.plus.names import Viewpoint
from embodied_rl.sim.perturb.visual import CAMERA
from embodied_rl.types import Array

_PIVOT = np.array([0.0, 0.0, 0.8])
"""m, in the world."""
_DIGITS = 4
Pose = tuple[list[float], list[float]]
"""Position (m) and quaternion (wxyz, not normalised) in the world."""


def viewpoint_pose(home: Pose, view: Viewpoint) -> Pose:
    """The pose from which `view` looks.

    Args:
        home: LIBERO's own pose, as the official code has it.
        view: what changes.

    Returns:
        The pose, rounded to four digits.
    """
    pos, quat = np.array(home[0]), np.array(home[1])
    if view.vertical:
        tilt = _turn(1, -view.vertical)
        pos, quat = _rounded(_rotated(tilt, pos - _PIVOT) + _PIVOT), _rounded(_product(tilt, _unit(quat)))
    turn = _turn(2, view.horizontal)
    pos, quat = _rounded(_rotated(turn, pos)), _rounded(_product(turn, _unit(quat)))
    if view.distance != 100:
        pos = _rounded(_PIVOT + (pos - _PIVOT) * (view.distance / 100))
    if view.end_horizontal:
        quat = _rounded(_product(_turn(2, view.end_horizontal), _unit(quat)))
    if view.end_vertical:
        quat = _rounded(_product(_turn(1, -view.end_vertical), _unit(quat)))
    return pos.tolist(), quat.tolist()


def put_camera(model: mujoco.MjModel, pose: Pose) -> None:
    """Move `agentview` of a visual model there, in place; UserError where it is not fixed to the world."""
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, CAMERA)
    if index < 0 or model.cam_bodyid[index] != 0:
        raise UserError(f"the scene has no camera '{CAMERA}' that is fixed to the world, and LIBERO-plus moves it")
    model.cam_pos[index] = pose[0]
    model.cam_quat[index] = _unit(np.array(pose[1]))  # as MuJoCo's compiler does


def _turn(axis: int, degrees: float) -> Array:
    """Quaternion (wxyz) of a turn about the world's axis 0, 1 or 2."""
    half = math.radians(degrees) / 2
    quat = np.zeros(4)
    quat[0], quat[1 + axis] = math.cos(half), math.sin(half)
    return quat


def _product(one: Array, other: Array) -> Array:
    out = np.empty(4)
    mujoco.mju_mulQuat(out, one, other)
    return out


def _rotated(quat: Array, point: Array) -> Array:
    out = np.empty(3)
    mujoco.mju_rotVecQuat(out, point, quat)
    return out


def _unit(quat: Array) -> Array:
    return quat / np.linalg.norm(quat)


def _rounded(values: Array) -> Array:
    return np.array([round(value, _DIGITS) for value in values.tolist()])
