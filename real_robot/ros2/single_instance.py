"""One bridge on a ROS_DOMAIN_ID: two on one arm would pull it to and fro."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.session import Session

_DISCOVERY_S, _ANSWER_S, _LOOK_S = 5.0, 2.0, 0.05
"""Fast DDS announces a node every 3 s: on one machine the first one is heard after 0.1 to 3.5 s."""


class SecondBridgeError(UserError):
    """Another bridge runs, or starts at the same moment."""


@contextmanager
def single_instance(name: str) -> Iterator[None]:
    """Be the only bridge of this name on the domain.

    On one computer the first to claim the name has it, until its process ends, however it ends. Bridges on other
    computers are looked for in ROS' graph: each has a hidden node from before it looks until it ends, so that of two
    which start at once each has 5 s to see the other. One that was killed may stay known for a while; it answers
    nothing, and is taken for dead after 2 s.

    Args:
        name: Of the bridge's node.

    Raises:
        SecondBridgeError: There is another one.
    """
    own = f"{_mark(name)}{uuid.uuid4().hex}"
    with Session(own) as session:
        session.start()
        place = session.node.get_namespace()
        domain = os.environ.get("ROS_DOMAIN_ID") or "0"
        with claimed(f"{domain}{_full(name, place)}", _full(name, place)):
            _refuse_others(session.node, name, own)
            yield


@contextmanager
def claimed(key: str, name: str) -> Iterator[None]:
    """Hold a key that one process of this computer can hold.

    It is an abstract Unix socket's address: the kernel frees it when its process ends, and it is seen by all users and
    by containers that share the computer's network, as ROS' own traffic is.

    Args:
        key: What is held.
        name: The node's, for the message.

    Raises:
        SecondBridgeError: Another process holds it.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        try:
            held.bind(f"\0embodied_rl.{sha256(key.encode()).hexdigest()}")  # an address has 107 bytes
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise _second(name) from None
        yield


def _second(name: str) -> SecondBridgeError:
    return SecondBridgeError(
        f"a bridge runs already, {name}, or starts at the same moment: end it first, or take another ROS_DOMAIN_ID"
    )


def _refuse_others(node: Any, name: str, own: str) -> None:
    """Look for bridges for as long as one may need to be discovered; each is asked once."""
    silent, place, until = set[str](), node.get_namespace(), time.monotonic() + _DISCOVERY_S
    while time.monotonic() < until:
        known = {other for other, where in node.get_node_names_and_namespaces() if where == place}
        bridges = {other for other in known if other == name or other.startswith(_mark(name))}
        for other in sorted(bridges - silent - {own}):
            if _answers(node, _full(other, place)):
                raise _second(_full(name, place))
            silent.add(other)
        time.sleep(_LOOK_S)


def _mark(name: str) -> str:
    """How the names of the hidden nodes begin that stand for bridges."""
    return f"_{name}_alone_"


def _full(name: str, place: str) -> str:
    return f"{place.rstrip('/')}/{name}"


def _answers(node: Any, name: str) -> bool:
    """Whether a node answers the service that every node has."""
    from rcl_interfaces.srv import GetParameters

    client = node.create_client(GetParameters, f"{name}/get_parameters")
    if not client.wait_for_service(timeout_sec=_ANSWER_S):
        return False
    answered = threading.Event()
    client.call_async(GetParameters.Request(names=[])).add_done_callback(lambda _: answered.set())
    return answered.wait(_ANSWER_S)
