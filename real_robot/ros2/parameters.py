"""A process' options as ROS parameters: given when it starts, read by whoever wants to know them, set by nobody."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from embodied_rl.errors import UserError

Options = TypeVar("Options")
_SECRET = ("token",)
_ROS_OWN = ("use_sim_time", "start_type_description_service", "qos_overrides.")
"""How parameters begin that belong to ROS."""


def argument(argv: Sequence[str]) -> str | None:
    """The JSON text of a command line; None where the options are ROS parameters (`--ros-args -p robot:=fr3`)."""
    return argv[1] if len(argv) > 1 and argv[1] != "--ros-args" else None


def options_of(node: Any, read: Callable[[str], Options], text: str | None = None) -> Options:
    """A process' options: from its JSON argument, or without one from the parameters that its node was given.

    An empty text is a parameter that is left out, as ROS has no null.

    Args:
        node: The process' own, whose parameters are declared as they are given.
        read: Makes the options of JSON.
        text: The JSON argument; None without one.

    Raises:
        UserError: An option is unknown or cannot be what it says, both ways were taken, or a secret is a parameter.
    """
    given = {
        name: parameter.value
        for name, parameter in node.get_parameters_by_prefix("").items()
        if not name.startswith(_ROS_OWN)
    }
    for name in given:
        node.undeclare_parameter(name)  # to be declared read-only
    if secret := [name for name in _SECRET if name in given]:
        raise UserError(f"{secret[0]} is no parameter, as everybody can read those: set EMBODIED_RL_TOKEN")
    if given and text is not None:
        raise UserError(f"options come as JSON or as ROS parameters, not both: remove {', '.join(given):.200}")
    return read(json.dumps({name: value for name, value in given.items() if value != ""}) if text is None else text)


def declare_parameters(node: Any, options: Any) -> None:
    """Declare every option but the server's token as a read-only parameter; one that is None or empty is left out.

    What is declared already stays as it is.

    Args:
        node: The process' own.
        options: A dataclass: how it runs.
    """
    from rcl_interfaces.msg import ParameterDescriptor

    for name, value in asdict(options).items():
        if name not in _SECRET and value not in (None, ()) and not node.has_parameter(name):
            node.declare_parameter(name, value, ParameterDescriptor(read_only=True), ignore_override=True)
