"""What the arm measured of its joints and fingers in the last moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_HISTORY = 256
"""Joint states that are kept: a second at the rates of arms."""
_REST_NS, _REST_RAD = 100_000_000, 0.005
"""An arm is at rest where no joint moved further in so long: slower than 0.05 rad/s."""


@dataclass(frozen=True)
class JointReading:
    """Joint angles [n] (rad) and finger positions (m) at a time; of two arms the widths of both grippers."""

    stamp_ns: int
    angles: np.ndarray
    fingers: tuple[float, float]


class JointHistory:
    """The last joint states, in the order of the arm's joints.

    Args:
        joints: The arm's joints.
        fingers: Joints whose absolute positions add up to the gripper's width; often in messages of their own.
        split: Of two arms, how many of the fingers are the first gripper's.

    Example:
        >>> history = JointHistory(robot.limits.names, ["finger_1", "finger_2"])
        >>> history.add({"joint_1": 0.1, ...}, stamp_ns)
        >>> history.nearest(stamp_ns).angles
    """

    def __init__(self, joints: Sequence[str], fingers: Sequence[str], split: int | None = None) -> None:
        self._joints, self._split = tuple(joints), split
        self._fingers = dict.fromkeys(fingers, 0.0)
        self._kept: deque[JointReading] = deque(maxlen=_HISTORY)

    def fingers_alone(self, known: Mapping[str, float]) -> bool:
        """Note the fingers of a message; whether it is the gripper's own, without any of the arm's joints.

        A position that is not finite is left out: the one before it stays.
        """
        own = {name: abs(known[name]) for name in self._fingers if name in known}
        self._fingers.update({name: position for name, position in own.items() if np.isfinite(position)})
        return bool(own) and not any(name in known for name in self._joints)

    def add(self, known: Mapping[str, float], stamp_ns: int) -> None:
        """Keep a joint state that has all of the arm's joints."""
        angles = np.array([known[name] for name in self._joints], np.float64)
        self._kept.append(JointReading(stamp_ns, angles, self._two_fingers()))

    def nearest(self, stamp_ns: int) -> JointReading | None:
        """The joints measured nearest to a time; None before the first."""
        return min(self._kept, key=lambda seen: abs(seen.stamp_ns - stamp_ns), default=None)

    @property
    def last(self) -> JointReading:
        """The last one; IndexError before the first."""
        return self._kept[-1]

    def moving(self) -> str:
        """Which joint moved in the last moments, and what to do; empty where none did."""
        seen = [one.angles for one in self._kept if one.stamp_ns >= self.last.stamp_ns - _REST_NS]
        spread = np.ptp(seen, axis=0) if seen else np.zeros(len(self._joints))
        if spread.max(initial=0.0) <= _REST_RAD:
            return ""
        joint = self._joints[int(spread.argmax())]
        return f"{joint} moved by {spread.max():.3f} rad in {_REST_NS / 1e9:g} s: wait until the arm rests"

    def _two_fingers(self) -> tuple[float, float]:
        """As a policy reads them: the second one's position is negative. Of two arms each gripper's width."""
        found = list(self._fingers.values())
        if self._split is not None:
            return sum(found[: self._split]), sum(found[self._split :])
        if len(found) == 2:
            return found[0], -found[1]
        half = sum(found) / 2
        return half, -half
