"""What a policy of LIBERO's format reads of the arm: the tool's pose in training's world, and the fingers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from embodied_rl.real_robot.core.kinematics import Chain, Origin


class Proprio:
    """Makes `proprio` from measured joints.

    Args:
        chain: The arm's kinematics.
        base: Its base in the world of training.

    Example:
        >>> Proprio(robot.chain, config.base)(angles, (0.04, -0.04)).shape
        (8,)
    """

    def __init__(self, chain: Chain, base: Origin) -> None:
        self._chain = chain
        self._position, self._turn = np.asarray(base.xyz, np.float64), base.rotation()
        self._base = _of_rpy(base.rpy)
        self._joints = [
            (_of_rpy(origin.rpy), np.asarray(axis, np.float64) / np.linalg.norm(axis))
            for origin, axis in zip(chain.origins, chain.axes, strict=True)
        ]
        self._tool = _of_rpy(chain.tool.rpy)

    def __call__(self, angles: np.ndarray, fingers: Sequence[float]) -> np.ndarray:
        """The eight numbers.

        Args:
            angles: Measured joint angles [n], rad.
            fingers: Positions of the two fingers, m; the second one's is negative, as in simulation.

        Returns:
            float32 [8]: position (m), axis times angle (rad, angle in [0, 2 pi]), fingers (m).
        """
        position = self._position + self._turn @ self._chain.position(angles)
        return np.concatenate([position, axis_angle(self.quaternion(angles)), fingers]).astype(np.float32)

    def quaternion(self, angles: np.ndarray) -> np.ndarray:
        """The tool's quaternion w, x, y, z as a product along the chain.

        Its sign goes on smoothly where that of a rotation matrix would jump: with the gripper down, w is nearly 0.
        """
        quaternion = self._base
        for (offset, axis), angle in zip(self._joints, angles, strict=True):
            own = np.array([math.cos(angle / 2), *(math.sin(angle / 2) * axis)])
            quaternion = _times(_times(quaternion, offset), own)
        return _times(quaternion, self._tool)


def axis_angle(quaternion: np.ndarray) -> np.ndarray:
    """Axis times angle [3], rad, of a unit quaternion w, x, y, z; the angle is 2 acos(w), in [0, 2 pi]."""
    w = min(max(float(quaternion[0]), -1.0), 1.0)
    sine = math.sqrt(1 - w * w)
    return np.zeros(3) if sine < 1e-8 else quaternion[1:] * (2 * math.acos(w) / sine)


def _of_rpy(rpy: tuple[float, float, float]) -> np.ndarray:
    """URDF's rpy: about the fixed x, then y, then z."""
    quaternion = np.array([1.0, 0, 0, 0])
    for axis in (2, 1, 0):
        own = np.zeros(4)
        own[0], own[1 + axis] = math.cos(rpy[axis] / 2), math.sin(rpy[axis] / 2)
        quaternion = _times(quaternion, own)
    return quaternion


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    w, x, y, z = a
    return np.array(
        [
            w * b[0] - x * b[1] - y * b[2] - z * b[3],
            w * b[1] + x * b[0] + y * b[3] - z * b[2],
            w * b[2] - x * b[3] + y * b[0] + z * b[1],
            w * b[3] + x * b[2] - y * b[1] + z * b[0],
        ]
    )
