"""The package's executables: embodied-rl's own processes, whose options are ROS parameters here."""

from __future__ import annotations

import sys

from embodied_rl.real_robot.ros2 import __main__ as ros2
from embodied_rl.real_robot.ros2.process import run_process


def bridge() -> None:
    """Run the bridge until it is told to end; its parameters are the fields of `BridgeOptions`."""
    sys.exit(run_process("bridge", ros2.main))


def twin() -> None:
    """Run the simulated twin until it is told to end; its parameters are the fields of `TwinOptions`."""
    from embodied_rl.real_robot.twin import __main__ as simulated  # MuJoCo, which an arm's computer lacks

    sys.exit(run_process("twin", simulated.main))
