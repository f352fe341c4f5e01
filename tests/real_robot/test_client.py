"""The robot's client: no torch, answers that are those of the policy, and a connection that comes back."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from websockets.sync.server import ServerConnection, serve

from embodied_rl.real_robot.client import PolicyClient, PolicyConnectionError, PolicyServerError
from embodied_rl.real_robot.client.wire import WireError, pack
from embodied_rl.real_robot.server.observations import Request
from embodied_rl.types import Array
from tests.real_robot.openpi_like import libero_obs
from tests.real_robot.serving import Serving, decide_all
from tests.real_robot.test_server import expected

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
ALLOWED = {"numpy", "websockets", "msgpack", "embodied_rl"}
class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ALLOWED or top.startswith("_"):
            return None
        if path is not None or top in ("cpuinfo", "python_socks", "werkzeug"):  # optional parts of the three
            return None
        raise ImportError(f"{name} is not on a robot's computer")
sys.meta_path.insert(0, Only())
from embodied_rl.real_robot.client import PolicyClient
try:
    PolicyClient("127.0.0.1", 1, connect_timeout=0.01)
except ConnectionError as error:
    print(error)
heavy = {"torch", "mujoco", "numba", "scipy", "gymnasium", "embodied_rl.sim", "embodied_rl.policies"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
try:
    import torch
except ImportError as error:
    print(error)
"""


@pytest.mark.process
def test_it_needs_numpy_websockets_and_msgpack_only() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot reach ws://127.0.0.1:1" in done.stdout
    assert "torch is not on a robot's computer" in done.stdout


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving() as running:
        yield running


def test_it_counts_decisions_and_begins_again(server: Serving) -> None:
    with PolicyClient(port=server.port, seed=3) as client:
        assert client.metadata == {"server": "test"}
        for decision in range(2):
            assert np.array_equal(client.infer(libero_obs(0))["actions"], expected(0, 3, decision))
        with pytest.raises(PolicyServerError, match="missing key 'observation/image'"):
            client.infer({})
        assert client.infer(libero_obs(0))["decision"] == 2
        client.reset()
        assert np.array_equal(client.infer(libero_obs(0))["actions"], expected(0, 3, 0))
        client.reset(seed=8)
        assert np.array_equal(client.infer(libero_obs(0))["actions"], expected(0, 8, 0))
        assert client.infer(libero_obs(0) | {"seed": 1, "decision": 9})["decision"] == 9
        with pytest.raises(WireError, match="cannot be sent"):
            client.infer({"x": object()})
        assert client.infer(libero_obs(0))["decision"] == 2
    with pytest.raises(PolicyConnectionError, match="is closed"):
        client.infer(libero_obs(0))


@pytest.mark.parametrize("host", ["localhost", "ws://127.0.0.1"])
def test_addresses(server: Serving, host: str) -> None:
    with PolicyClient(host, server.port) as client:
        client.infer(libero_obs(0))
    with PolicyClient(f"ws://127.0.0.1:{server.port}", None) as client:
        client.infer(libero_obs(0))


def test_a_lost_connection_comes_back_and_changes_nothing() -> None:
    with Serving() as first:
        client = PolicyClient(port=first.port, seed=2)
        client.infer(libero_obs(0))
    with Serving(port=first.port):
        assert np.array_equal(client.infer(libero_obs(1))["actions"], expected(1, 2, 1))
    client.close()
    with pytest.raises(PolicyConnectionError, match="cannot reach"):
        PolicyClient(port=first.port, connect_timeout=0.01)


def test_a_server_that_is_not_there_yet_is_waited_for() -> None:
    with Serving() as first:
        port = first.port
    made: list[PolicyClient] = []
    waiting = threading.Thread(target=lambda: made.append(PolicyClient(port=port, connect_timeout=60)))
    waiting.start()
    with Serving(port=port):
        waiting.join(60)
        made[0].infer(libero_obs(0))
        made[0].close()


def test_a_late_answer_is_never_the_next_ones() -> None:
    go_on = threading.Event()

    def slow(requests: Sequence[Request]) -> list[Array | str]:
        if requests[0].instruction == "put bowl 0 on the plate":
            assert go_on.wait(900)
        return decide_all(requests)

    with Serving(slow) as server, PolicyClient(port=server.port, timeout=0.3) as client:
        with pytest.raises(PolicyConnectionError, match=r"did not answer in 0.3 s"):
            client.infer(libero_obs(0))
        go_on.set()
        client._timeout = 60
        assert np.array_equal(client.infer(libero_obs(1))["actions"], expected(1, 0, 0))


def test_the_token() -> None:
    with Serving(token="s3cret") as server:
        with pytest.raises(PolicyConnectionError, match=r"refused the connection \(401\): this server wants its token"):
            PolicyClient(port=server.port, token="other")
        with PolicyClient(port=server.port, token="s3cret") as client:
            client.infer(libero_obs(0))


def test_a_message_that_is_too_large_is_not_sent_again() -> None:
    with Serving(max_message_bytes=100) as server, PolicyClient(port=server.port) as client:
        with pytest.raises(PolicyConnectionError, match="100"):
            client.infer(libero_obs(0))
        assert server.server.metrics.connections == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"\xc1", "answered something else"),
        (pack([1]), "answered something else"),
        (pack({"actions": 1}), "answered something else"),
        (pack({"actions": np.full((2, 7), np.nan)}), "not finite"),
        (pack({"actions": np.zeros(7)}), r"not finite \[K, A\]"),
        ("the policy failed", "the policy failed"),
    ],
)
def test_actions_that_are_none_are_never_returned(answer: bytes | str, text: str) -> None:
    def talk(connection: ServerConnection) -> None:
        connection.send(pack({}))
        connection.recv()
        connection.send(answer)

    with serve(talk, "127.0.0.1", 0) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        with PolicyClient(port=other.socket.getsockname()[1]) as client, pytest.raises(PolicyServerError, match=text):
            client.infer(libero_obs(0))
        other.shutdown()
        thread.join(60)


def test_a_server_of_something_else_is_named() -> None:
    with serve(lambda connection: connection.send("hello"), "127.0.0.1", 0) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        with pytest.raises(PolicyConnectionError, match="is no policy server: it begins with 'hello'"):
            PolicyClient(port=other.socket.getsockname()[1])
        other.shutdown()
        thread.join(60)


def test_proxies_of_the_environment_are_left_alone(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "http_proxy", "http://127.0.0.1:1")
    with PolicyClient(port=server.port) as client:
        client.infer(libero_obs(0))


class Mute:
    """A server that takes connections, does what `talk` says, and then neither reads nor writes."""

    def __init__(self, talk: Callable[[socket.socket], None]) -> None:
        self._talk, self._listener = talk, socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.port: int = self._listener.getsockname()[1]
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                self._taken.append(self._listener.accept()[0])
                self._talk(self._taken[-1])

    def __enter__(self) -> int:
        self._thread.start()
        return self.port

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for taken in (self._listener, *self._taken):
            taken.close()
        self._thread.join(60)


def opened(taken: socket.socket) -> None:
    """The handshake of a websocket, and no more."""
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        said += taken.recv(4096)
    key = next(line.split(b": ")[1] for line in said.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
    proof = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    taken.sendall(head + proof + b"\r\n\r\n")


def introduced(taken: socket.socket) -> None:
    """The handshake, and empty metadata."""
    opened(taken)
    taken.sendall(b"\x82" + bytes([len(pack({}))]) + pack({}))


@pytest.mark.parametrize("talk", [lambda taken: None, opened])
def test_a_server_that_says_nothing_of_itself_is_given_up(talk: Callable[[socket.socket], None]) -> None:
    with (
        Mute(talk) as port,
        pytest.raises(PolicyConnectionError, match=rf"cannot reach ws://127.0.0.1:{port}: timed out"),
    ):
        PolicyClient(port=port, connect_timeout=0.3)


@pytest.mark.parametrize("side", [8, 4096])
def test_a_server_that_reads_nothing_is_given_up(side: int) -> None:
    """The small request is taken by the system's buffers, the large one by nobody."""
    ended: list[str] = []

    def ask(port: int) -> None:
        with PolicyClient(port=port, timeout=0.5) as client:
            try:
                client.infer({"picture": np.zeros((side, side, 3), np.uint8)})
            except PolicyConnectionError as error:
                ended.append(str(error))

    with Mute(introduced) as port:
        asking = threading.Thread(target=ask, args=[port], daemon=True)
        asking.start()
        asking.join(20)
    assert ended == [f"ws://127.0.0.1:{port} did not answer in 0.5 s"]
