"""The peer's arm on rclpy: python -m tests.real_robot.ros2.peers.arm_rclpy, in any ROS 2's environment."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.session import Session
from tests.real_robot.ros2.peers import arm as peer


def main() -> None:
    """Be an arm until told to end."""
    from sensor_msgs.msg import Image, JointState
    from std_msgs.msg import Bool, Float64MultiArray
    from trajectory_msgs.msg import JointTrajectory

    arm = peer.Arm()
    with Session("arm") as session:
        node = session.node
        states = node.create_publisher(JointState, f"/{peer.JOINT_STATES}", qos.sensor(5))
        cameras = [node.create_publisher(Image, f"/{topic}", qos.sensor()) for topic in peer.CAMERAS]
        button = node.create_publisher(Bool, f"/{peer.BUTTON}", qos.event())
        node.create_subscription(JointTrajectory, f"/{peer.TRAJECTORIES}", arm.sent, qos.event())
        node.create_subscription(Float64MultiArray, f"/{peer.GRIPPER}", lambda one: arm.width.extend(one.data), 10)

        def joints(arm: peer.Arm) -> None:
            message = JointState(name=[*peer.JOINTS, *peer.FINGERS])
            message.position = array("d", [*arm.positions, 0.02, -0.02])
            message.velocity = array("d", [0.25] * 9)
            stamp(message)
            states.publish(message)

        shown = itertools.count()

        def images() -> None:
            for number, camera in enumerate(cameras):
                message = Image(height=peer.SIDE, width=peer.SIDE, encoding="rgb8", step=3 * peer.SIDE)
                message.data = array("B", peer.image(number, next(shown) // len(cameras)))
                stamp(message)
                camera.publish(message)

        session.start()
        arm.run(joints, images, lambda pressed: button.publish(Bool(data=pressed)))


def stamp(message: Any) -> None:
    """Write the time of day into a message's header."""
    message.header.stamp.sec, message.header.stamp.nanosec = peer.stamp()


if __name__ == "__main__":
    main()
