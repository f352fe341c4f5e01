"""The clocks of a robot's processes: one that never jumps for the control loop, and the wall's for stamps."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """Time as the bridge and the twin count it.

    Args:
        speed: Seconds of theirs in a second of the wall clock. 1 on every real arm. A twin, its bridge and their
            stamps can run slower on a computer that is too busy for real time: all must be given the same speed.

    Example:
        >>> clock = Clock()
        >>> clock.sleep_until(clock.now_ns() + 10_000_000)
    """

    speed: float = 1.0

    def now_ns(self) -> int:
        """Monotonic time, ns."""
        return int(time.monotonic_ns() * self.speed)

    def ros_ns(self) -> int:
        """Time for stamps, ns: ROS' system time at speed 1."""
        return int(time.time_ns() * self.speed)

    def own_ns(self, ros_ns: int) -> int:
        """A stamp in monotonic time."""
        return self.now_ns() - (self.ros_ns() - ros_ns)

    def sleep_until(self, due_ns: int) -> None:
        """Sleep until a monotonic time; return at once if it is past."""
        left_ns = due_ns - self.now_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9 / self.speed)
