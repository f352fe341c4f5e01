"""Each controller's words for a set point: one small file each, made by name."""

from __future__ import annotations

from typing import Any, Protocol

from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.ros2.config import ArmTopic, GripperTopic
from embodied_rl.real_robot.ros2.loop import Output


class ArmAdapter(Protocol):
    """Sends set points."""

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point of `output`, which has one.

        Args:
            output: What the tick decided.
            ros_ns: ROS time of the tick.
        """
        ...


class GripperAdapter(Protocol):
    """Sends the gripper's width."""

    def send(self, width: float, ros_ns: int) -> None:
        """Send a width, m."""
        ...


def arm_adapter(node: Any, config: ArmTopic, robot: Robot) -> ArmAdapter:
    """The adapter that the arm's file names, with its publisher: the only one on that topic."""
    if config.adapter == "joint_trajectory":
        from embodied_rl.real_robot.ros2.adapters.joint_trajectory import JointTrajectoryAdapter

        return JointTrajectoryAdapter(node, config.topic, robot)
    if config.adapter == "joint_trajectory_action":
        from embodied_rl.real_robot.ros2.adapters.joint_trajectory import JointTrajectoryActionAdapter

        return JointTrajectoryActionAdapter(node, config.topic, robot)
    if config.adapter == "position_array":
        from embodied_rl.real_robot.ros2.adapters.position_array import PositionArrayAdapter

        return PositionArrayAdapter(node, config.topic, robot)
    if config.adapter == "servo_twist":
        from embodied_rl.real_robot.ros2.adapters.servo import ServoAdapter

        return ServoAdapter(node, config.topic, robot)
    from embodied_rl.real_robot.ros2.adapters.crisp import CrispJointAdapter, CrispPoseAdapter

    return (CrispPoseAdapter if config.adapter == "crisp_pose" else CrispJointAdapter)(node, config.topic, robot)


def gripper_adapter(node: Any, config: GripperTopic) -> GripperAdapter:
    """The same for the gripper."""
    from embodied_rl.real_robot.ros2.adapters.gripper import Float64ArrayGripper, GripperCommandGripper

    return (Float64ArrayGripper if config.adapter == "float64_array" else GripperCommandGripper)(node, config)
