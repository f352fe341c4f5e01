"""MoveIt Servo: the tool's velocity at the gate's set point. Servo halts after 0.1 s of silence."""

from __future__ import annotations

from typing import Any

import numpy as np

from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.adapters.stamps import set_time
from embodied_rl.real_robot.ros2.loop import Output

_STEP_S = 1e-4


class ServoAdapter:
    """Publishes geometry_msgs/TwistStamped, m/s and rad/s in the base frame.

    Args:
        node: The bridge's.
        topic: Such as /servo_node/delta_twist_cmds.
        robot: Its kinematics and base frame.
    """

    def __init__(self, node: Any, topic: str, robot: Robot) -> None:
        from geometry_msgs.msg import TwistStamped

        self._message, self._robot = TwistStamped, robot
        self._publisher = node.create_publisher(TwistStamped, topic, qos.command())

    def send(self, output: Output, ros_ns: int) -> None:
        """Send the set point's velocity."""
        setpoint = output.tick.setpoint
        assert setpoint is not None
        message = self._message()
        set_time(message.header.stamp, ros_ns)
        message.header.frame_id = self._robot.base_frame
        twist = twist_of(self._robot, setpoint.positions, setpoint.velocities)
        linear, angular = message.twist.linear, message.twist.angular
        linear.x, linear.y, linear.z = map(float, twist[:3])
        angular.x, angular.y, angular.z = map(float, twist[3:])
        self._publisher.publish(message)


def twist_of(robot: Robot, positions: np.ndarray, velocities: np.ndarray) -> np.ndarray:
    """The tool's velocity [6], m/s and rad/s in the base frame, of joint velocities [n], rad/s."""
    (before, turn_before), (after, turn_after) = (
        robot.chain.pose(positions + sign * _STEP_S * velocities) for sign in (-0.5, 0.5)
    )
    turn = turn_after @ turn_before.T
    angular = np.array([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]]) / 2
    return np.concatenate([after - before, angular]) / _STEP_S
