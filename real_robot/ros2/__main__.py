"""python -m embodied_rl.real_robot.ros2 JSON: the bridge as a process of its own; see `BridgeOptions`."""

from __future__ import annotations

import os
import sys
import threading

from embodied_rl.real_robot.client import PolicyClient
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.process import run_process, watch
from embodied_rl.real_robot.ros2.session import Session

NODE = "embodied_rl"


def main(stopping: threading.Event) -> int:
    """Run until told to end, or whoever started it is gone; 1 where the bridge could not go on."""
    options = BridgeOptions.from_json(sys.argv[1])
    token = options.token or os.environ.get("EMBODIED_RL_TOKEN") or None
    clients = [
        PolicyClient(options.host, options.port, token=token, timeout=2.0, connect_timeout=120.0)
        for _ in range(options.requests)
    ]
    with Session(NODE) as session:
        bridge = Bridge(session, options, clients)
        bridge.start()
        code = watch("bridge", stopping, lambda: bridge.error)
        bridge.close()
    return code


if __name__ == "__main__":
    sys.exit(run_process("bridge", main))
