"""python -m embodied_rl.real_robot.twin JSON: the twin as a process of its own; see `TwinOptions`."""

from __future__ import annotations

import os
import signal
import sys
import threading

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.node import TwinNode
from embodied_rl.real_robot.twin.options import TwinOptions

_LOOK_S = 0.1


def main() -> int:
    """Run until SIGINT, SIGTERM, or whoever started it is gone; 1 where the simulation failed."""
    stopping, parent = threading.Event(), os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    with Session("twin") as session:
        twin = TwinNode(session, TwinOptions.from_json(sys.argv[1]))
        twin.start()
        print("twin ready", flush=True)
        while not stopping.wait(_LOOK_S) and os.getppid() == parent:
            if error := twin.error or session.error:
                print(f"the twin failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                return 1
        twin.close()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"embodied-rl twin: error: {error}", file=sys.stderr)
        sys.exit(2)
