"""CRISP's Cartesian and joint impedance controllers.

They take one publisher a topic and ignore commands where there are more: a human's takeover goes through the bridge.
They hold the last target, and `target_joint` is applied by index, so names and order are the arm's file's.
"""

from __future__ import annotations

from array import array
from typing import Any

from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.adapters.stamps import set_time
from embodied_rl.real_robot.ros2.loop import Output


class CrispPoseAdapter:
    """Publishes geometry_msgs/PoseStamped: where the gate lets the tool be, in the base frame.

    Args:
        node: The bridge's.
        topic: Such as /target_pose.
        robot: Its base frame.
    """

    def __init__(self, node: Any, topic: str, robot: Robot) -> None:
        from geometry_msgs.msg import PoseStamped

        self._message, self._frame = PoseStamped, robot.base_frame
        self._publisher = node.create_publisher(PoseStamped, topic, qos.command())

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point's pose."""
        message = self._message()
        set_time(message.header.stamp, ros_ns)
        message.header.frame_id = self._frame
        position, orientation = message.pose.position, message.pose.orientation
        position.x, position.y, position.z = map(float, output.position)
        orientation.x, orientation.y, orientation.z, orientation.w = map(float, output.quaternion)
        self._publisher.publish(message)


class CrispJointAdapter:
    """Publishes sensor_msgs/JointState to the joint impedance controller.

    Args:
        node: The bridge's.
        topic: Such as /target_joint.
        robot: Its joints' names.
    """

    def __init__(self, node: Any, topic: str, robot: Robot) -> None:
        from sensor_msgs.msg import JointState

        self._message, self._names = JointState, list(robot.limits.names)
        self._publisher = node.create_publisher(JointState, topic, qos.command())

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point's positions and velocities."""
        setpoint = output.tick.setpoint
        assert setpoint is not None
        message = self._message(
            name=self._names, position=array("d", setpoint.positions), velocity=array("d", setpoint.velocities)
        )
        set_time(message.header.stamp, ros_ns)
        self._publisher.publish(message)
