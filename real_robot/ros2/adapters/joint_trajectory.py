"""ros2_control's joint_trajectory_controller: each set point with the stop that would follow it.

The controller follows a trajectory to its end and stays there. Every message therefore ends at rest, by the gate's own
stop: where the next message does not come, the arm brakes within its limits. Points have velocities, so that the
controller interpolates by cubics; the stamp is the tick's time, so that what is late is dropped and not replayed.
"""

from __future__ import annotations

import importlib
from array import array
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.gate import NANOSECONDS, Setpoint
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.adapters.stamps import set_time
from embodied_rl.real_robot.ros2.loop import Output

LEAD_TICKS = 2
"""A set point is due so many ticks after its message: one for the way, one for a late tick."""
_STRIDE = 3
"""Ticks between the points of a stop."""


def waypoints(output: Output, period_ns: int) -> list[tuple[int, Setpoint]]:
    """The set point of `output` and the stop after it, thinned: when each is due, ns after the tick.

    Args:
        output: With a set point.
        period_ns: Length of a tick.
    """
    setpoint = output.tick.setpoint
    assert setpoint is not None
    ends = [*range(_STRIDE - 1, len(output.stop) - 1, _STRIDE), len(output.stop) - 1] if output.stop else []
    chosen = [(0, setpoint), *((index + 1, output.stop[index]) for index in ends)]
    return [((tick + LEAD_TICKS) * period_ns, one) for tick, one in chosen]


class Trajectories:
    """Makes trajectory_msgs/JointTrajectory of set points.

    Args:
        robot: Names and rate.
    """

    def __init__(self, robot: Robot) -> None:
        from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

        self.kind, self._point = JointTrajectory, JointTrajectoryPoint
        self._names = list(robot.limits.names)
        self._period_ns = round(NANOSECONDS / robot.rate_hz)

    def of(self, output: Output, ros_ns: int) -> Any:
        """The set point of `output` and the stop after it, stamped with the tick's time."""
        message = self.kind(joint_names=self._names)
        set_time(message.header.stamp, ros_ns)
        message.points = [self._one(due_ns, setpoint) for due_ns, setpoint in waypoints(output, self._period_ns)]
        return message

    def _one(self, due_ns: int, setpoint: Setpoint) -> Any:
        point = self._point(positions=array("d", setpoint.positions), velocities=array("d", setpoint.velocities))
        set_time(point.time_from_start, due_ns)
        return point


class JointTrajectoryAdapter:
    """Publishes trajectory_msgs/JointTrajectory.

    Args:
        node: The bridge's.
        topic: Such as /joint_trajectory_controller/joint_trajectory.
        robot: Names and rate.
    """

    def __init__(self, node: Any, topic: str, robot: Robot) -> None:
        self._trajectories = Trajectories(robot)
        self._publisher = node.create_publisher(self._trajectories.kind, topic, qos.command())

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point and the stop after it."""
        self._publisher.publish(self._trajectories.of(output, ros_ns))


class JointTrajectoryActionAdapter:
    """Sends the same as goals of control_msgs/action/FollowJointTrajectory, each in place of the one before.

    For controllers that offer no topic: a goal costs more than a message, so prefer the topic where there is one.

    Args:
        node: The bridge's.
        action: Such as /joint_trajectory_controller/follow_joint_trajectory.
        robot: Names and rate.

    Raises:
        UserError: control_msgs is not installed.
    """

    def __init__(self, node: Any, action: str, robot: Robot) -> None:
        try:
            actions = importlib.import_module("control_msgs.action")
        except ImportError:
            raise UserError(
                "ros.arm.adapter joint_trajectory_action needs control_msgs: "
                "apt-get install ros-$ROS_DISTRO-control-msgs, or take joint_trajectory"
            ) from None
        from rclpy.action import ActionClient

        self._log, self._name = node.get_logger(), action
        self._action, self._trajectories = actions.FollowJointTrajectory, Trajectories(robot)
        self._client = ActionClient(node, actions.FollowJointTrajectory, action)

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point and the stop after it as a goal."""
        goal = self._action.Goal(trajectory=self._trajectories.of(output, ros_ns))
        self._client.send_goal_async(goal).add_done_callback(self._answered)

    def _answered(self, future: Any) -> None:
        """Say where the controller refuses goals: the arm then stands still."""
        if not future.result().accepted:
            self._log.error(f"{self._name} refuses goals: is the controller active?", throttle_duration_sec=1.0)
