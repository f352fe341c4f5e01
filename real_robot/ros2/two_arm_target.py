"""Where two arms and their grippers should be next: joint positions, as policies of ALOHA's format give them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.two_arms import TwoArmRobot

_SAME_WIDTH = 1e-5


class TwoArmTarget:
    """The joints that an action asks for, and each gripper's own gate.

    An action has each arm's joint positions (rad) and its gripper's share of the way from closed, 0, to open, 1: first
    one arm's, then the other's. Each control tick does one action.

    Args:
        robot: Both arms, with grippers.

    Example:
        >>> target = TwoArmTarget(robot)
        >>> target.act(action)
        >>> target.command(now_ns, "policy")
    """

    def __init__(self, robot: TwoArmRobot) -> None:
        self._robot = robot
        self._joints, self._grips = axes_of(robot)
        self._gates = [gate for arm in robot.arms if (gate := arm.gripper_gate()) is not None]
        self._closed = np.array([one.lower[0] for one in robot.grippers])
        self._way = np.array([one.upper[0] for one in robot.grippers]) - self._closed
        self._wanted, self._widths = robot.home, self._closed.copy()

    def rest(self, angles: np.ndarray) -> None:
        """Begin at rest at joint angles [n], rad; the grippers keep their command."""
        self._wanted = angles.copy()

    def start_grippers(self, widths: Sequence[float], now_ns: int) -> None:
        """Begin at measured widths, m."""
        inside = np.clip(widths, self._closed + 1e-3 * self._way, self._closed + (1 - 1e-3) * self._way)
        for gate, width in zip(self._gates, inside, strict=True):
            gate.start(np.array([width]), now_ns)
        self._widths = inside

    def act(self, action: np.ndarray | None) -> None:
        """Take the action of a control step; None: stay at the last one's joints."""
        if action is not None:
            self._wanted = np.asarray(action, np.float64)[self._joints]
            self._widths = self._closed + np.clip(np.asarray(action)[self._grips], 0, 1) * self._way

    def advance(self) -> None:
        """Nothing moves between two actions."""

    def command(self, now_ns: int, source: str) -> Command:
        """The joints that the last action asked for."""
        return Command(now_ns, self._robot.limits.names, self._wanted, source=source)

    def reached(self, angles: np.ndarray, *, braked: bool) -> None:
        """Go on from the set point [n], rad, where the gate had no command."""
        if braked:
            self._wanted = angles.copy()

    def widths(self, now_ns: int) -> tuple[float, ...]:
        """The grippers' set points, m."""
        found = []
        for gate, limits, wanted in zip(self._gates, self._robot.grippers, self._widths, strict=True):
            if not gate.at_rest or abs(wanted - gate.positions[0]) >= _SAME_WIDTH:
                gate.decide(Command(now_ns, limits.names, [wanted]), now_ns)
            found.append(float(gate.positions[0]))
        return tuple(found)


class TwoArmProprio:
    """Makes `proprio` of measured joints, in an action's order and units.

    Args:
        robot: Both arms, with grippers.

    Example:
        >>> TwoArmProprio(robot)(angles, (0.05, 0.05)).shape
        (14,)
    """

    def __init__(self, robot: TwoArmRobot) -> None:
        self._joints, self._grips = axes_of(robot)
        self._closed = np.array([one.lower[0] for one in robot.grippers])
        self._way = np.array([one.upper[0] for one in robot.grippers]) - self._closed

    def __call__(self, angles: np.ndarray, widths: Sequence[float]) -> np.ndarray:
        """Joint angles (rad) and each gripper's share of its way: float32 [n + 2].

        Args:
            angles: Measured joint angles [n], rad.
            widths: Both grippers', m.
        """
        found = np.empty(len(self._joints) + len(self._grips), np.float32)
        found[self._joints] = angles
        found[self._grips] = (np.asarray(widths) - self._closed) / self._way
        return found


def axes_of(robot: TwoArmRobot) -> tuple[list[int], list[int]]:
    """Where the joints of both arms stand in an action, and where the grippers do."""
    left, right = (len(arm.limits.names) for arm in robot.arms)
    return [*range(left), *range(left + 1, left + 1 + right)], [left, left + 1 + right]


def axis_names(robot: TwoArmRobot) -> tuple[str, ...]:
    """The name of each number of an action."""
    return tuple(name for arm in robot.arms for name in (*arm.limits.names, f"{arm.name}/gripper"))
