"""What the peers' arms have in common: an arm that is at once wherever it is asked to be, and presses its button.

Needs neither ROS nor this package's environment: each peer says it in its own middleware's words.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

JOINTS = tuple(f"robot0_joint{number}" for number in range(1, 8))
FINGERS = ("gripper0_finger_joint1", "gripper0_finger_joint2")
HOME = (0.0, -0.161, 0.0, -2.445, 0.0, 2.227, 0.785398)
SIDE = 8
JOINT_STATES, TRAJECTORIES, GRIPPER = (
    "joint_states",
    "joint_trajectory_controller/joint_trajectory",
    "gripper_position_controller/commands",
)
CAMERAS = ("agentview/image_raw", "robot0_eye_in_hand/image_raw")
BUTTON = "emergency_stop"
ENOUGH = 30
"""Trajectories after which the button is pressed."""
_PERIOD_S = 0.02


def image(camera: int, number: int) -> bytes:
    """The pixels [8, 8, 3] of a camera's pictures, of which there are two in turn: it is not stuck."""
    pixels = [(7 * index + 50 * camera) % 256 for index in range(SIDE * SIDE * 3)]
    return bytes([100 * (number % 2), *pixels[1:]])


@dataclass
class Arm:
    """Where the arm is and what it was sent."""

    positions: list[float] = field(default_factory=lambda: list(HOME))
    width: list[float] = field(default_factory=list)
    trajectories: list[dict[str, Any]] = field(default_factory=list)

    def sent(self, message: Any) -> None:
        """Take a JointTrajectory."""
        stamp = message.header.stamp
        points = [
            {
                "positions": list(point.positions),
                "velocities": list(point.velocities),
                "ns": point.time_from_start.sec * 10**9 + point.time_from_start.nanosec,
            }
            for point in message.points
        ]
        names = list(message.joint_names)
        self.trajectories.append({"ns": stamp.sec * 10**9 + stamp.nanosec, "names": names, "points": points})
        self.positions = points[0]["positions"]

    def run(self, joints: Callable[[Arm], None], cameras: Callable[[], None], button: Callable[[bool], None]) -> None:
        """Publish until told to end, then print what was heard as one JSON line."""
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        print("arm ready", flush=True)
        for tick in range(10**6):
            joints(self)
            if tick % 2 == 0:
                cameras()
            button(len(self.trajectories) >= ENOUGH)
            if stopping.wait(_PERIOD_S):
                break
        print(json.dumps({"trajectories": self.trajectories, "width": self.width}), flush=True)


def stamp() -> tuple[int, int]:
    """The time of day, s and ns."""
    return divmod(time.time_ns(), 10**9)
