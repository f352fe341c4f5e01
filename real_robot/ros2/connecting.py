"""The bridge's connections to its policy server. Imports no ROS."""

from __future__ import annotations

import os
import threading
import time

from embodied_rl.errors import UserError
from embodied_rl.real_robot.client import PolicyClient, PolicyConnectionError, PolicyUnreachableError
from embodied_rl.real_robot.ros2.options import SERVER_S, BridgeOptions

_LOADING_S = 120.0
"""How long a policy server that may still be loading is waited for."""
_ANSWER_S = 2.0


def connect(options: BridgeOptions, stopping: threading.Event) -> list[PolicyClient]:
    """Make the connections, as many as there may be questions on their way.

    Args:
        options: The server's address, and whether it may still be loading (`autostart`).
        stopping: Set where the process should end: then nobody is waited for any longer than `SERVER_S`.

    Raises:
        UserError: The server is not reached, or refuses; says why.
    """
    until = time.monotonic() + (_LOADING_S if options.autostart else SERVER_S)
    clients = list[PolicyClient]()
    try:
        for _ in range(options.requests):
            clients.append(_client(options, until, stopping))
    except PolicyConnectionError as error:
        for client in clients:
            client.close()
        raise UserError(f"{error}: is `embodied-rl serve` running there, with the same token?") from error
    return clients


def _client(options: BridgeOptions, until: float, stopping: threading.Event) -> PolicyClient:
    token = options.token or os.environ.get("EMBODIED_RL_TOKEN") or None
    while True:
        wait_s = min(SERVER_S, max(0.05, until - time.monotonic()))
        try:
            return PolicyClient(options.host, options.port, token=token, timeout=_ANSWER_S, connect_timeout=wait_s)
        except PolicyUnreachableError:
            if stopping.is_set() or time.monotonic() >= until:
                raise
