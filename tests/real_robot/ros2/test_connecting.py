"""The bridge waits for a server that loads, unless it should end, and says in one line why there is no connection."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.client import PolicyConnectionError, PolicyUnreachableError
from embodied_rl.real_robot.ros2 import connecting
from embodied_rl.real_robot.ros2.options import SERVER_S, BridgeOptions


class Server:
    """Stands in for the client's class: each attempt is noted and answered from a list."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers, self.waits, self.closed = list(answers), list[float](), 0

    def __call__(self, host: str, port: int, *, connect_timeout: float, **_: Any) -> Any:
        self.waits.append(connect_timeout)
        if (answer := self.answers.pop(0)) is not None:
            raise answer
        return self

    def close(self) -> None:
        self.closed += 1


LOADING = PolicyUnreachableError("cannot reach ws://gpu-box:8000: loading")


def connected(monkeypatch: pytest.MonkeyPatch, server: Server, stopping: bool = False, **options: Any) -> int:
    monkeypatch.setattr(connecting, "PolicyClient", server)
    told = threading.Event()
    if stopping:
        told.set()
    return len(connecting.connect(BridgeOptions(**options), told))


def test_a_server_that_loads_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(LOADING, LOADING, None, None)
    assert connected(monkeypatch, server, requests=2) == 2
    assert max(server.waits) <= SERVER_S, "whoever ends the bridge waits no longer"


def test_a_bridge_that_should_end_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(LOADING, None)
    with pytest.raises(UserError, match="cannot reach ws://gpu-box:8000: loading: is `embodied-rl serve` running"):
        connected(monkeypatch, server, stopping=True)
    assert len(server.waits) == 1


def test_a_server_that_refuses_is_asked_once_and_nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(None, PolicyConnectionError("refused the connection (401): wrong token"))
    with pytest.raises(UserError, match="wrong token"):
        connected(monkeypatch, server, requests=2)
    assert server.closed == 1
