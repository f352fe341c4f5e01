"""Whether a bridge runs already: two on one arm would pull it to and fro."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.session import Session

_DISCOVERY_S, _ANSWER_S, _LOOK_S = 5.0, 2.0, 0.05
"""Fast DDS announces a node every 3 s: on one machine the first one is heard after 0.1 to 3.5 s."""


class SecondBridgeError(UserError):
    """Another bridge answers."""


def refuse_second(name: str) -> None:
    """Look for a bridge before one is made.

    One that was killed may stay known for a while; it answers nothing, and after 2 s it is taken for dead.

    Args:
        name: Of the bridge's node.

    Raises:
        SecondBridgeError: A node of this name answers.
    """
    with Session(f"{name}_start_{os.getpid()}") as session:
        session.start()
        if _known(session.node, name) and _answers(session.node, name):
            raise SecondBridgeError(f"a bridge runs already, /{name}: end it first, or take another ROS_DOMAIN_ID")


def _known(node: Any, name: str) -> bool:
    """Whether a node of this name is discovered."""
    until = time.monotonic() + _DISCOVERY_S
    while (name, "/") not in node.get_node_names_and_namespaces():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_S)
    return True


def _answers(node: Any, name: str) -> bool:
    """Whether it answers the service that every node has."""
    from rcl_interfaces.srv import GetParameters

    client = node.create_client(GetParameters, f"/{name}/get_parameters")
    if not client.wait_for_service(timeout_sec=_ANSWER_S):
        return False
    answered = threading.Event()
    client.call_async(GetParameters.Request(names=[])).add_done_callback(lambda _: answered.set())
    return answered.wait(_ANSWER_S)
