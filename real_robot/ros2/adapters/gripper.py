"""Grippers: an array of positions, or the GripperCommand action where control_msgs is installed."""

from __future__ import annotations

import importlib
from array import array
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.config import GripperTopic

_EVERY_NS, _LEAST_CHANGE = 200_000_000, 0.001


class Float64ArrayGripper:
    """Publishes std_msgs/Float64MultiArray with one number: the width times the file's `scale`.

    Args:
        node: The bridge's.
        config: The gripper's topic and scale.
    """

    def __init__(self, node: Any, config: GripperTopic) -> None:
        from std_msgs.msg import Float64MultiArray

        self._message, self._scale = Float64MultiArray, config.scale
        self._publisher = node.create_publisher(Float64MultiArray, config.topic, qos.command())

    def send(self, width: float, ros_ns: int) -> None:
        """Send a width, m."""
        self._publisher.publish(self._message(data=array("d", [width * self._scale])))


class GripperCommandGripper:
    """Sends goals of control_msgs/action/GripperCommand: at most five a second, and only where the width changes.

    Args:
        node: The bridge's.
        config: The action's name and scale.

    Raises:
        UserError: control_msgs is not installed.
    """

    def __init__(self, node: Any, config: GripperTopic) -> None:
        try:
            actions = importlib.import_module("control_msgs.action")
        except ImportError:
            raise UserError(
                "ros.gripper.adapter gripper_command needs control_msgs: apt-get install ros-$ROS_DISTRO-control-msgs"
            ) from None
        from rclpy.action import ActionClient

        self._log, self._name = node.get_logger(), config.topic
        self._action, self._scale = actions.GripperCommand, config.scale
        assert config.effort is not None
        self._effort = config.effort
        self._client = ActionClient(node, actions.GripperCommand, config.topic)
        self._sent: tuple[float, int] | None = None
        self._refused = False

    def send(self, width: float, ros_ns: int) -> None:
        """Send a goal if the width has changed by a millimetre or the last goal was refused, 0.2 s after that one."""
        if self._sent is not None:
            last, when = self._sent
            if (abs(width - last) < _LEAST_CHANGE and not self._refused) or ros_ns - when < _EVERY_NS:
                return
        goal = self._action.Goal()
        goal.command.position, goal.command.max_effort = width * self._scale, self._effort
        self._sent, self._refused = (width, ros_ns), False
        self._client.send_goal_async(goal).add_done_callback(self._answered)

    def _answered(self, future: Any) -> None:
        """Ask again where the goal was refused, and say so: the gripper has not moved."""
        if not future.result().accepted:
            self._refused = True
            self._log.error(
                f"{self._name} refuses goals: is the gripper's controller active?", throttle_duration_sec=1.0
            )
