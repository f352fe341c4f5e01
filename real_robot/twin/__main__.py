"""python -m embodied_rl.real_robot.twin JSON: the twin as a process of its own; see `TwinOptions`.

With `--ros-args` in place of the JSON text its options are ROS parameters.
"""

from __future__ import annotations

import sys
import threading

from embodied_rl.real_robot.ros2.parameters import argument, declare_parameters, options_of
from embodied_rl.real_robot.ros2.process import run_process, watch
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.node import TwinNode
from embodied_rl.real_robot.twin.options import TwinOptions


def main(stopping: threading.Event) -> int:
    """Run until told to end, or whoever started it is gone; 1 where the simulation failed."""
    with Session("twin") as session:
        options = options_of(session.node, TwinOptions.from_json, argument(sys.argv))
        declare_parameters(session.node, options)
        twin = TwinNode(session, options)
        twin.start()
        code = watch("twin", stopping, lambda: twin.error or session.error)
        twin.close()
    return code


if __name__ == "__main__":
    sys.exit(run_process("twin", main))
