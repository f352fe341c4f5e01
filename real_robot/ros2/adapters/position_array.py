"""Controllers that take bare positions: forward_command_controller, position_controllers."""

from __future__ import annotations

from array import array
from typing import Any

from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.loop import Output


class PositionArrayAdapter:
    """Publishes std_msgs/Float64MultiArray with the joint positions, in the order of the arm's file.

    Such a controller jumps to what it gets and holds it: the rate in the arm's file should be its own.

    Args:
        node: The bridge's.
        topic: Such as /forward_position_controller/commands.
    """

    def __init__(self, node: Any, topic: str) -> None:
        from std_msgs.msg import Float64MultiArray

        self._message = Float64MultiArray
        self._publisher = node.create_publisher(Float64MultiArray, topic, qos.command())

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point."""
        assert output.tick.setpoint is not None
        self._publisher.publish(self._message(data=array("d", output.tick.setpoint.positions)))
