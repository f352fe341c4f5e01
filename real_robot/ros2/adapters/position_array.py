"""Controllers that take bare positions: forward_command_controller, position_controllers."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.gate import NANOSECONDS, Setpoint
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.loop import Output

_ANEW_TICKS = 4
"""After so long a silence the arm was armed anew: its set point is where it is measured."""
_MARGIN = 1.001
"""Of the gate's limits, for rounding."""


class PositionArrayAdapter:
    """Publishes std_msgs/Float64MultiArray with the joint positions, in the order of the arm's file.

    Such a controller jumps to what it gets and holds it: the rate in the arm's file should be its own. Where a set
    point comes late and the next on time, what is sent keeps the limits of velocity in real time, and catches up. A set
    point that was given up for where the arm is measured is taken as it is: the way there leads from where it is not.

    Args:
        node: The bridge's.
        topic: Such as /forward_position_controller/commands.
        robot: Its limits and rate.
        now_ns: The clock by which messages are apart, ns.
    """

    def __init__(self, node: Any, topic: str, robot: Robot, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        from std_msgs.msg import Float64MultiArray

        self._message, self._now_ns, self._velocity = Float64MultiArray, now_ns, robot.limits.velocity
        self._anew_ns = round(_ANEW_TICKS * NANOSECONDS / robot.rate_hz)
        self._sent: tuple[int, np.ndarray] | None = None
        self._setpoint: Setpoint | None = None
        self._publisher = node.create_publisher(Float64MultiArray, topic, qos.command())

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point, or as much of the way to it as the time since the last one allows."""
        assert output.tick.setpoint is not None
        now_ns, positions = self._now_ns(), output.tick.setpoint.positions
        before, self._setpoint = self._setpoint, output.tick.setpoint
        if self._sent is not None and now_ns - self._sent[0] < self._anew_ns and not self._given_up(before):
            way, seconds = positions - self._sent[1], (now_ns - self._sent[0]) / NANOSECONDS
            needed = float(np.max(np.abs(way) / self._velocity))
            positions = positions if needed <= seconds else self._sent[1] + way * (seconds / needed)
        self._sent = (now_ns, positions)
        self._publisher.publish(self._message(data=array("d", positions)))

    def _given_up(self, before: Setpoint | None) -> bool:
        """Whether the set point is elsewhere than the gate's limits allow from the one before."""
        if before is None or self._setpoint is None:
            return True
        seconds = (self._setpoint.stamp_ns - before.stamp_ns) / NANOSECONDS
        return bool((np.abs(self._setpoint.positions - before.positions) > _MARGIN * self._velocity * seconds).any())
