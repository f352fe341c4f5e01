"""python -m embodied_rl.real_robot.twin JSON: the twin as a process of its own; see `TwinOptions`."""

from __future__ import annotations

import sys
import threading

from embodied_rl.real_robot.ros2.process import run_process, watch
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.node import TwinNode
from embodied_rl.real_robot.twin.options import TwinOptions


def main(stopping: threading.Event) -> int:
    """Run until told to end, or whoever started it is gone; 1 where the simulation failed."""
    with Session("twin") as session:
        twin = TwinNode(session, TwinOptions.from_json(sys.argv[1]))
        twin.start()
        code = watch("twin", stopping, lambda: twin.error or session.error)
        twin.close()
    return code


if __name__ == "__main__":
    sys.exit(run_process("twin", main))
