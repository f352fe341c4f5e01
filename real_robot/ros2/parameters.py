"""The bridge's options as ROS parameters: read by whoever wants to know how it runs, set by nobody."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from embodied_rl.real_robot.ros2.options import BridgeOptions

_SECRET = ("token",)


def declare_parameters(node: Any, options: BridgeOptions) -> None:
    """Declare every option but the server's token as a read-only parameter; one that is None is left out.

    What is declared already stays as it is.

    Args:
        node: The bridge's.
        options: How it runs.
    """
    from rcl_interfaces.msg import ParameterDescriptor

    for name, value in asdict(options).items():
        if name not in _SECRET and value is not None and not node.has_parameter(name):
            node.declare_parameter(name, value, ParameterDescriptor(read_only=True))
