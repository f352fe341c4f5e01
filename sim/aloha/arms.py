"""Kinematics of ALOHA's arms: from the pose of a gripper to joint positions."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from embodied_rl.sim.aloha.robot import ARM_HOME, ARM_JOINTS, ARM_RANGES
from embodied_rl.types import Array

PINCH = 0.145
"""From a gripper's frame to between its fingertips, along its x axis (m); the fingers end 9 mm farther."""
_DAMPING = 1e-4
_LARGEST_TURN = 0.3
"""Of a joint in one iteration (rad)."""


def turned(side: str, pitch: float, roll: float = 0.0) -> Array:
    """Rotation [3, 3] of a gripper that points from its arm's base over the table, `pitch` rad down from level.

    roll: about where it points; at 0 the fingers close along the world's y axis, at a quarter turn along its z axis.
    """
    out = _about("y", pitch) @ _about("x", roll)
    return out if side == "left" else _about("z", math.pi) @ out


def _about(axis: str, angle: float) -> Array:
    quat, out = np.empty(4), np.empty(9)
    mujoco.mju_axisAngle2Quat(quat, np.array([float(axis == name) for name in "xyz"]), angle)
    mujoco.mju_quat2Mat(out, quat)
    return out.reshape(3, 3)


def _to_vector(rotation: Array) -> Array:
    """Axis times angle, [3]."""
    quat, out = np.empty(4), np.empty(3)
    mujoco.mju_mat2Quat(quat, rotation.ravel())
    mujoco.mju_quat2Vel(out, quat, 1.0)
    return out


class Arm:
    """One arm's kinematics, in an mjData of its own.

    Args:
        model: of any of ALOHA's scenes.
        side: 'left' or 'right'.

    Attributes:
        joints: float64 [6], rad, which the methods move; at first the home pose.
    """

    def __init__(self, model: mujoco.MjModel, side: str) -> None:
        self._model, self._data = model, mujoco.MjData(model)
        names = [f"vx300s_{side}/{joint}" for joint in ARM_JOINTS]
        self._qpos = np.array([model.joint(name).qposadr[0] for name in names])
        self._dof = np.array([model.joint(name).dofadr[0] for name in names])
        self._hand = int(model.body(f"vx300s_{side}/gripper_link").id)
        self._low, self._high = np.array(ARM_RANGES).T
        self.joints = np.array(ARM_HOME)

    def pose(self) -> tuple[Array, Array]:
        """Where `joints` bring the point between the fingertips, [3] in m, and the gripper's rotation, [3, 3]."""
        self._data.qpos[self._qpos] = self.joints
        mujoco.mj_kinematics(self._model, self._data)
        rotation = self._data.xmat[self._hand].reshape(3, 3).copy()
        return self._data.xpos[self._hand] + PINCH * rotation[:, 0], rotation

    def place(self, position: Array, rotation: Array) -> Array:
        """Move `joints` to a pose with the wrist bent up or down, whichever is nearer; float64 [6], rad."""
        before, found = self.joints, []
        for wrist in (-0.6, 0.6):
            self.joints = np.array([*before[:3], 0.0, wrist, before[5]])
            found.append(self.solve(position, rotation, iterations=60))
        self.joints = min(found, key=lambda joints: float(np.abs(joints - before).max()))
        return self.joints.copy()

    def solve(self, position: Array, rotation: Array, iterations: int = 6) -> Array:
        """Move `joints` towards a pose, by damped least squares; float64 [6], rad."""
        jac_pos, jac_rot = np.empty((3, self._model.nv)), np.empty((3, self._model.nv))
        for _ in range(iterations):
            here, now = self.pose()
            error = np.concatenate([position - here, now @ _to_vector(now.T @ rotation)])
            if np.abs(error).max() < 1e-5:
                break
            mujoco.mj_comPos(self._model, self._data)
            mujoco.mj_jac(self._model, self._data, jac_pos, jac_rot, here, self._hand)
            jac = np.concatenate([jac_pos, jac_rot])[:, self._dof]
            change = jac.T @ np.linalg.solve(jac @ jac.T + _DAMPING * np.eye(6), error)
            change *= min(1.0, _LARGEST_TURN / max(np.abs(change).max(), 1e-9))
            self.joints = np.clip(self.joints + change, self._low, self._high)
        return self.joints.copy()
