"""The twin's joint_trajectory_controller: cubic interpolation from where the arm should be now through the points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Point:
    """Where the joints should be at a time [n], rad, and how fast they should move there, rad/s."""

    time_ns: int
    positions: np.ndarray
    velocities: np.ndarray


class TrajectoryFollower:
    """Follows the newest trajectory to its end and stays there.

    Args:
        positions: Where the arm rests [n], rad.

    Example:
        >>> follower = TrajectoryFollower(home)
        >>> follower.take([Point(now + 20_000_000, target, np.zeros(7))], now)
        >>> follower.at(now + 10_000_000)
    """

    def __init__(self, positions: np.ndarray) -> None:
        self._points = [Point(0, positions.copy(), np.zeros(len(positions)))]

    def take(self, points: list[Point], now_ns: int) -> None:
        """Follow these from where the arm should be at `now_ns`; points that are past are dropped."""
        ahead = [point for point in points if point.time_ns > now_ns]
        if not ahead:
            return
        positions, velocities = self.at(now_ns)
        self._points = [Point(now_ns, positions, velocities), *ahead]

    def at(self, now_ns: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions (rad) and velocities (rad/s) [n] that should be at a time."""
        before = self._points[0]
        if now_ns <= before.time_ns:
            return before.positions, before.velocities
        for after in self._points[1:]:
            if now_ns <= after.time_ns:
                return _cubic(before, after, now_ns)
            before = after
        return before.positions, np.zeros_like(before.velocities)


def _cubic(before: Point, after: Point, now_ns: int) -> tuple[np.ndarray, np.ndarray]:
    seconds = (after.time_ns - before.time_ns) / 1e9
    s = (now_ns - before.time_ns) / (after.time_ns - before.time_ns)
    step = after.positions - before.positions
    v0, v1 = before.velocities * seconds, after.velocities * seconds
    a, b = 3 * step - 2 * v0 - v1, v0 + v1 - 2 * step
    return before.positions + s * (v0 + s * (a + s * b)), (v0 + s * (2 * a + 3 * s * b)) / seconds
