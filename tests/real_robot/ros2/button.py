"""A publisher as a process of its own: python -m tests.real_robot.ros2.button KIND WORDS..., says 'said' when heard.

| words | what it is |
|---|---|
| repeating HZ | a button that says all the time that it is let out |
| once reliable/best_effort/latched true/false... | one that says this, once each |
| lease SECONDS | one that says by its quality of service that it lives |
| commands | somebody else who could command the arm |
| number | a button of another type |
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.session import Session

NAMES = {"repeating": "cell_button", "lease": "cell_button", "commands": "second_commander", "number": "cell_button"}


def profile(kind: str) -> Any:
    """Of this name."""
    return {"best_effort": qos.sensor(1), "latched": qos.latched()}.get(kind, qos.event())


def main(kind: str, *words: str) -> None:
    """Publish until ended; then say good-bye, as a node that is shut down does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from rclpy.duration import Duration
    from rclpy.qos import LivelinessPolicy, QoSProfile
    from std_msgs.msg import Bool, Int8
    from trajectory_msgs.msg import JointTrajectory

    config = load_ros_config("twin")
    with Session(NAMES.get(kind, f"{'_'.join(words[:1])}_button")) as session:
        session.start()
        node = session.node
        if kind == "commands":
            node.create_publisher(JointTrajectory, config.arm.topic, qos.command())
        elif kind == "number":
            node.create_publisher(Int8, config.emergency_stop, qos.event())
        else:
            chosen = profile(words[0])
            if kind == "lease":
                lease = Duration(seconds=float(words[0]))
                manual = LivelinessPolicy.MANUAL_BY_TOPIC
                chosen = QoSProfile(depth=1, liveliness=manual, liveliness_lease_duration=lease)
            button = node.create_publisher(Bool, config.emergency_stop, chosen)
            while button.get_subscription_count() < (2 if kind == "lease" else words[0] != "latched"):
                time.sleep(0.02)  # one of the bridge's looks for the lease
            for _ in range(10 * (kind == "lease")):
                button.assert_liveliness()
                time.sleep(0.1)
            values = [word == "true" for word in words[1:]] if kind == "once" else [False]
            for value in values:
                button.publish(Bool(data=value))
        print("said", flush=True)
        while True:
            time.sleep(1 / float(words[0]) if kind == "repeating" else 0.1)
            if kind == "repeating":
                button.publish(Bool(data=False))
            elif kind == "lease":
                button.assert_liveliness()


if __name__ == "__main__":
    main(*sys.argv[1:])
