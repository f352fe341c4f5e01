"""Two cameras of 1920 x 1080 at 30 Hz, as a process: what the bridge has to decode while somebody presses the button.

python -m embodied_rl.benchmarks.deploy_cameras: publishes on the twin's camera topics until it is ended.
python -m embodied_rl.benchmarks.deploy_cameras --port P: a policy server that sees them and asks for nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_rl.benchmarks.deploy_faults import Drills
from embodied_rl.errors import UserError
from embodied_rl.real_robot.deploy.episodes import patiently, to_idle
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.adapters.stamps import set_time
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.server.app import PolicyServer
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.limits import ServerLimits
from embodied_rl.real_robot.server.observations import PolicySpec, Request
from embodied_rl.types import Array

WIDTH, HEIGHT, HZ = 1920, 1080, 30.0
SPEC = PolicySpec(cameras=2, image_size=16, proprio_dim=8, chunk_len=16, action_dim=7)
"""Chunks that reach 0.8 s: a computer that has other things to do answers late."""
_MODULE = "embodied_rl.benchmarks.deploy_cameras"
_IMAGES, _WAIT_S, _AFTER_S = 4, 60.0, 0.3


def button_to_last_command(config: LauncherConfig, task: str, presses: int) -> dict[str, Any]:
    """Press the emergency stop again and again while both cameras are seen.

    Args:
        config: Twin and bridge, in real time; the twin's own cameras are turned off, and the policy stays where it is.
        task: Of the twin.
        presses: How often.

    Returns:
        `ms`: from each press to the last set point that another process heard, 0 where that came before the press;
        `flows`: what the bridge says of its cameras.
    """
    launcher, clock, rng, found = (
        Launcher(replace(config, server=(_MODULE,))),
        Clock(),
        np.random.default_rng(0),
        list[float](),
    )
    try:
        drills = Drills(launcher, task)
        assert launcher.twin is not None
        launcher.twin.drop_cameras(*(camera.name for camera in load_ros_config("twin").cameras))
        with Process(
            "cameras", "embodied_rl.benchmarks.deploy_cameras", [], config.environment, "cameras ready"
        ) as one:
            one.wait_ready(_WAIT_S)
            launcher.bridge.instruct(launcher.twin.begin(task, 50, 0))
            for _ in range(presses):
                found.append(_press(launcher, drills, clock, float(rng.uniform(0.2, 0.7))))
            flows = launcher.bridge.status["flows"]
        to_idle(launcher.bridge)
    finally:
        launcher.close()
    return {"ms": found, "flows": flows}


def _press(launcher: Launcher, drills: Drills, clock: Clock, after_s: float) -> float:
    bridge = launcher.bridge
    for wish in ("arm", "start"):
        patiently(bridge, wish)
    clock.sleep_until(clock.now_ns() + round(after_s * 1e9))
    if bridge.state not in ("running", "holding"):
        raise UserError(f"the arm is {bridge.state}: {bridge.status['faults']}")
    pressed_ns = bridge.press()
    if not bridge.wait_state("e-stopped", _WAIT_S):
        raise UserError("the bridge does not hear the button")
    clock.sleep_until(pressed_ns + round(_AFTER_S * 1e9))
    last_ms = 1000 * max(0.0, drills.watch.last_command_s(pressed_ns))
    bridge.press(False)
    patiently(bridge, "reset")
    return last_ms


def decide(requests: Sequence[Request]) -> list[Array | str]:
    """Stay."""
    return [np.zeros((SPEC.chunk_len, SPEC.action_dim), np.float32) for _ in requests]


def serve(port: int) -> None:
    """Answer until ended: what a policy thinks is no matter of the button's."""
    address = socket.create_server(("127.0.0.1", port))
    fitter = ImageFitter(size=SPEC.image_size, pipeline="as_rendered", mirror=False)
    names = ("cameras", "image_size", "proprio_dim", "chunk_len", "action_dim", "instruction")
    metadata = {name: getattr(SPEC, name) for name in names} | {"policy": "stays", "weights": "none"}
    server = PolicyServer(decide, SPEC, fitter, metadata=metadata, limits=ServerLimits())
    ready = f"ready: ws://127.0.0.1:{address.getsockname()[1]}"
    asyncio.run(server.run(address, lambda: None, lambda: print(ready, flush=True)))


def main() -> None:
    """Publish until ended, or serve."""
    if "--port" in sys.argv:
        serve(int(sys.argv[sys.argv.index("--port") + 1]))
        return
    stopping = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    with Session("cameras") as session:
        session.start()
        _publish(session, stopping)


def _publish(session: Session, stopping: list[int]) -> None:
    from sensor_msgs.msg import Image

    publishers = [
        session.node.create_publisher(Image, camera.topic, qos.sensor()) for camera in load_ros_config("twin").cameras
    ]
    rng = np.random.default_rng(os.getpid())
    images = [
        array("B", rng.integers(0, 256, HEIGHT * WIDTH * 3, np.uint8).tobytes()) for _ in range(_IMAGES)
    ]  # new ones: a camera that repeats itself is a fault
    print("cameras ready", flush=True)
    clock, number = Clock(), 0
    due_ns = clock.now_ns()
    while not stopping:
        clock.sleep_until(due_ns)
        due_ns = max(due_ns + round(1e9 / HZ), clock.now_ns())
        for publisher in publishers:
            number += 1
            message = Image(height=HEIGHT, width=WIDTH, encoding="rgb8", step=3 * WIDTH)
            message.data = images[number % _IMAGES]
            set_time(message.header.stamp, time.time_ns())
            publisher.publish(message)


if __name__ == "__main__":
    main()
