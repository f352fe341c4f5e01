"""Forward kinematics of a chain of revolute joints, for any number of poses at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Origin:
    """A frame in its parent, as URDF writes it: xyz in m; rpy in rad about the fixed axes x, then y, then z."""

    xyz: tuple[float, float, float] = (0.0, 0.0, 0.0)
    rpy: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def rotation(self) -> np.ndarray:
        """The rotation matrix [3, 3]."""
        (cr, cp, cy), (sr, sp, sy) = np.cos(self.rpy), np.sin(self.rpy)
        return np.array(
            [
                [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
                [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
                [-sp, cp * sr, cp * cr],
            ]
        )


class Chain:
    """The arm from its base frame to the tool.

    Args:
        origins: Each joint's frame in the frame of the joint before, at angle 0.
        axes: Each joint's axis in its own frame, [n, 3]; any length but 0.
        tool: The tool's frame in the last joint's.
        base: The arm's base in the frame in which positions are given; None: its own frame.

    Example:
        >>> Chain([Origin((0, 0, 1))], [(0, 0, 1)], Origin((0.5, 0, 0))).position(np.array([0.0]))
        array([0.5, 0. , 1. ])
    """

    def __init__(
        self, origins: Sequence[Origin], axes: Sequence[Sequence[float]], tool: Origin, base: Origin | None = None
    ) -> None:
        self.origins, self.axes, self.tool = tuple(origins), tuple(tuple(axis) for axis in axes), tool
        self._base = np.zeros(3) if base is None else np.asarray(base.xyz, np.float64)
        self._base_turn = np.eye(3) if base is None else base.rotation()
        # Each joint's own axis is turned to z, so that a joint mixes two columns of the rotation only.
        offsets, turns, backs, back = [], [], [], np.eye(3)
        for origin, axis in zip(origins, axes, strict=True):
            to_axis = _z_to(np.asarray(axis, np.float64))
            offsets.append(back @ np.asarray(origin.xyz, np.float64))
            turns.append(back @ origin.rotation() @ to_axis)
            back = to_axis.T
            backs.append(back)
        self._offsets, self._turns, self._backs = np.array(offsets), np.array(turns), np.array(backs)
        self._tool_offset, self._tool_turn = back @ np.asarray(tool.xyz, np.float64), back @ tool.rotation()

    def position(self, angles: np.ndarray) -> np.ndarray:
        """Where the tool is.

        Args:
            angles: Joint angles [..., n], rad.

        Returns:
            Positions in the base frame [..., 3], m.
        """
        return self._frames(angles)[0]

    def pose(self, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tool's position [..., 3] (m) and rotation matrix [..., 3, 3] in the base frame."""
        position, columns = self._frames(angles)
        return position, np.stack(columns, -1) @ self._tool_turn

    def carried(self, angles: np.ndarray, joints: Sequence[int], points: np.ndarray) -> np.ndarray:
        """Where points are that joints carry.

        Args:
            angles: Joint angles [..., n], rad.
            joints: Number of the joint in whose frame each point is given, from 0; -1 for the base's.
            points: [m, 3], m.

        Returns:
            Positions in the frame that `base` is given in [..., m, 3], m.
        """
        found, of_joints = np.empty((*angles.shape[:-1], len(points), 3)), np.asarray(joints)
        for joint, (position, columns) in enumerate(self._walk(angles), -1):
            mine = of_joints == joint
            if mine.any():
                own = points[mine] if joint < 0 else points[mine] @ self._backs[joint].T
                found[..., mine, :] = position[..., None, :] + own @ np.stack(columns, -2)
        return found

    def _walk(self, angles: np.ndarray) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
        """Position [..., 3] and the three columns of the rotation, each [..., 3], of the base and of each joint."""
        cos, sin = np.cos(angles), np.sin(angles)
        shape = (*angles.shape[:-1], 3)
        position = np.broadcast_to(self._base, shape)
        columns = [np.broadcast_to(column, shape) for column in self._base_turn.T]
        yield position, columns
        for joint, (offset, turn) in enumerate(zip(self._offsets, self._turns, strict=True)):
            position = _add(position, columns, offset)
            x, y, z = (_mix(columns, turn[:, i]) for i in range(3))
            c, s = cos[..., joint, None], sin[..., joint, None]
            columns = [c * x + s * y, c * y - s * x, z]
            yield position, columns

    def _frames(self, angles: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """Position of the tool and the three columns of the last joint's rotation, each [..., 3]."""
        *_, (position, columns) = self._walk(angles)
        return _add(position, columns, self._tool_offset), columns


def _mix(columns: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    return columns[0] * weights[0] + columns[1] * weights[1] + columns[2] * weights[2]


def _add(position: np.ndarray, columns: list[np.ndarray], offset: np.ndarray) -> np.ndarray:
    return position + _mix(columns, offset)


def _z_to(axis: np.ndarray) -> np.ndarray:
    """A rotation matrix whose third column is `axis`'s direction."""
    z = axis / np.linalg.norm(axis)
    x = np.cross(z, np.eye(3)[np.argmin(np.abs(z))]) if abs(z[2]) < 1 - 1e-12 else np.array([1.0, 0.0, 0.0])
    x = x / np.linalg.norm(x)
    return np.stack([x, np.cross(z, x), z], 1)
