"""python -m embodied_rl.real_robot.ros2 JSON: the bridge as a process of its own; see `BridgeOptions`."""

from __future__ import annotations

import os
import signal
import sys
import threading

from embodied_rl.errors import UserError
from embodied_rl.real_robot.client import PolicyClient
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.session import Session

NODE = "embodied_rl"
_LOOK_S = 0.1


def main() -> int:
    """Run until SIGINT, SIGTERM, or whoever started it is gone; 1 where the bridge could not go on."""
    options = BridgeOptions.from_json(sys.argv[1])
    stopping, parent = threading.Event(), os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    token = options.token or os.environ.get("EMBODIED_RL_TOKEN") or None
    clients = [
        PolicyClient(options.host, options.port, token=token, timeout=2.0, connect_timeout=120.0)
        for _ in range(options.requests)
    ]
    with Session(NODE) as session:
        bridge = Bridge(session, options, clients)
        bridge.start()
        print("bridge ready", flush=True)
        while not stopping.wait(_LOOK_S) and os.getppid() == parent:
            if error := bridge.error:
                print(f"the bridge failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                bridge.close()
                return 1
        bridge.close()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"embodied-rl bridge: error: {error}", file=sys.stderr)
        sys.exit(2)
