"""The bridge with a peer's arm, as a process that has rclpy: prints one JSON line for the tests.

python -m tests.real_robot.ros2.peers.bridge JSON: see `Wanted`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.events import CommandJudged, JointsMeasured
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.session import Session
from tests.real_robot.ros2.peers import arm as peer

_WAIT_S = 100.0


@dataclass(frozen=True)
class Wanted:
    """What is run.

    Args:
        robot: The arm's file.
        recording: The MCAP file.
        module: The peer's arm.
        arguments: Its command line.
        environment: Of its process.
    """

    robot: str
    recording: str
    module: str
    arguments: list[str]
    environment: dict[str, str]


class Sideways:
    """A policy that pushes sideways, and keeps the pictures that it was shown."""

    def __init__(self) -> None:
        sizes = {"cameras": 2, "image_size": peer.SIDE, "proprio_dim": 8, "chunk_len": 4, "action_dim": 7}
        self.metadata: dict[str, Any] = {**sizes, "instruction": True, "policy": "sideways", "weights": "none"}
        self.images: set[tuple[bytes, ...]] = set()

    def infer(self, obs: dict[str, Any]) -> dict[str, Any]:
        self.images.add(tuple(image.tobytes() for image in obs["images"]))
        return {"actions": np.tile(np.array([0, 0.6, 0, 0, 0, 0, -1.0]), (4, 1))}

    def close(self) -> None:
        """Nothing to close."""


class Listener:
    """Raw messages by topic, as they were on the wire, and the hashes of their types."""

    def __init__(self, session: Session) -> None:
        from diagnostic_msgs.msg import DiagnosticArray
        from sensor_msgs.msg import JointState
        from std_msgs.msg import Float64MultiArray, String
        from trajectory_msgs.msg import JointTrajectory

        self._node = session.node
        self.raw: dict[str, list[str]] = {}
        self.types: dict[str, str] = {}
        best, sure, kept = qos.sensor(5), qos.event(), qos.latched()
        self._hear(JointTrajectory, f"/{peer.TRAJECTORIES}", sure)
        self._hear(Float64MultiArray, f"/{peer.GRIPPER}", sure)
        self._hear(JointState, f"/{peer.JOINT_STATES}", best)
        self._hear(String, "/embodied_rl/state", kept)
        self._hear(String, "/embodied_rl/status", best)
        self._hear(DiagnosticArray, "/diagnostics", sure)
        self.instruction = self._node.create_publisher(String, "/embodied_rl/instruction", kept)
        self.instruction.publish(String(data="push"))

    def hashes(self) -> dict[str, str]:
        """What the bridge's publishers say of their types."""
        found = {topic: self._node.get_publishers_info_by_topic(topic) for topic in self.types}
        own = {topic: [info for info in infos if info.node_name == "embodied_rl"] for topic, infos in found.items()}
        return {topic: str(infos[0].topic_type_hash) for topic, infos in own.items() if infos}

    def _hear(self, kind: Any, topic: str, profile: Any) -> None:
        self.raw[topic] = []
        self.types[topic] = f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}"
        self._node.create_subscription(kind, topic, lambda data: self.raw[topic].append(data.hex()), profile, raw=True)


def main(wanted: Wanted) -> dict[str, Any]:
    """Arm the peer's arm, let the policy move it until it presses its button."""
    policy, events = Sideways(), list[Any]()
    options = BridgeOptions(robot=wanted.robot, record=wanted.recording)
    with Session("listener") as ears, Session("embodied_rl") as session:
        listener = Listener(ears)
        ears.start()
        with (
            Process("arm", wanted.module, wanted.arguments, wanted.environment, "arm ready") as arm,
            closing(Bridge(session, options, [policy])) as bridge,
        ):
            bridge.loop.events.subscribe(events.append)
            bridge.start()
            _until(lambda: bridge.fire(Event.ARM), bridge)
            _until(lambda: bridge.fire(Event.START), bridge)
            _until(lambda: "" if bridge.loop.state is ArmState.ESTOPPED else "the button is not heard", bridge)
            time.sleep(1.0)  # diagnostics come once a second
            hashes = listener.hashes()
        said = json.loads(arm.last_line)
    heard = {tuple(event.positions.tolist()) for event in events if isinstance(event, JointsMeasured)}
    names = {event.names for event in events if isinstance(event, JointsMeasured)}
    judged = [event.tick.setpoint for event in events if isinstance(event, CommandJudged)]
    return {
        "arm": said,
        "heard": sorted(heard),
        "names": sorted(names),
        "pictures": [[one.hex() for one in shown] for shown in sorted(policy.images)],
        "sent": [one.positions.tolist() for one in judged if one is not None],
        "raw": listener.raw,
        "types": listener.types,
        "hashes": hashes,
    }


def _until(trouble: Callable[[], str], bridge: Bridge) -> None:
    """Try again until there is none."""
    deadline = time.monotonic() + _WAIT_S
    while why := trouble():
        if time.monotonic() > deadline or bridge.error is not None:
            raise RuntimeError(f"{why}; the bridge is {bridge.loop.state}, error {bridge.error}")
        if bridge.loop.state is ArmState.HOLDING:  # a busy computer
            bridge.fire(Event.RESUME)
        time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps(main(Wanted(**json.loads(sys.argv[1])))))
