"""Clients that are malformed, oversized, slow or hostile: each is turned away for a reason, and others are answered."""

from __future__ import annotations

import gc
import os
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.messages import one_too_many
from embodied_rl.types import Array
from tests.real_robot.openpi_like import OpenpiLike, encode, libero_obs
from tests.real_robot.serving import Serving
from tests.real_robot.test_server import expected, get

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
BINARY, CONTINUED, PING, FIN = 0x2, 0x0, 0x9, 0x80


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving(max_message_bytes=1 << 16, max_pending=20, message_s=60, ping_s=60, handshake_s=3600) as running:
        yield running


@pytest.fixture(autouse=True)
def _others_are_still_answered(server: Serving) -> Iterator[None]:
    with OpenpiLike(server.port) as bystander:
        yield
        answer = bystander.infer(libero_obs(2) | {"seed": 3})
        assert np.array_equal(answer["actions"], expected(2, 3, 0))
    assert server.error is None


def frame(opcode: int, data: bytes, *, fin: bool = True, length: int | None = None) -> bytes:
    """A client's frame, masked with zeros; `length` is what it claims."""
    size = len(data) if length is None else length
    head = bytes([opcode | (FIN if fin else 0)])
    if size < 126:
        return head + bytes([0x80 | size]) + bytes(4) + data
    return head + bytes([0x80 | 127]) + struct.pack(">Q", size) + bytes(4) + data


def opened(port: int) -> socket.socket:
    """A connection whose handshake is done and whose metadata is read."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=900)
    raw.sendall(UPGRADE)
    seen = b""
    while b"server" not in seen.partition(b"\r\n\r\n")[2]:
        seen += raw.recv(4096)
    return raw


def ending(raw: socket.socket) -> tuple[int | None, str]:
    """Read to the end; code and reason of the close frame, None where the connection was cut."""
    seen = b""
    with suppress(ConnectionError):
        while piece := raw.recv(65536):
            seen += piece
    at = 0
    while at + 2 <= len(seen):
        opcode, size = seen[at] & 0x0F, seen[at + 1]
        body = seen[at + 2 : at + 2 + size]
        if opcode == 0x8:
            # a close frame without a code is answered by one
            return (struct.unpack(">H", body[:2])[0], body[2:].decode()) if body else (None, "")
        at += 2 + size
    return None, ""


def test_an_oversized_message_closes_with_the_size(server: Serving) -> None:
    with OpenpiLike(server.port) as client:
        client.socket.send(bytes(70_000))
        with pytest.raises(ConnectionClosed, match="65536") as found:
            client.socket.recv(timeout=900)
        assert found.value.rcvd is not None
        assert found.value.rcvd.code == 1009


def test_a_frame_that_only_claims_to_be_huge_costs_nothing(server: Serving) -> None:
    raw = opened(server.port)
    raw.sendall(frame(BINARY, b"", length=2**62))
    assert ending(raw)[0] == 1009


def test_a_message_in_endless_fragments_is_cut(server: Serving) -> None:
    raw = opened(server.port)
    with suppress(ConnectionError):
        raw.sendall(frame(BINARY, b"", fin=False) + frame(CONTINUED, b"", fin=False) * 3000)
    code, reason = ending(raw)
    assert (code, reason) == (1008, "a message of more than 1024 fragments")


def test_a_message_that_never_ends_is_cut() -> None:
    with Serving(message_s=0.5) as server, OpenpiLike(server.port) as client:

        def pieces() -> Iterator[bytes]:
            yield b"\x81"
            with pytest.raises(ConnectionClosed, match=r"took longer than 0\.5 s to arrive"):
                client.socket.recv(timeout=900)

        with pytest.raises(ConnectionClosed):
            client.socket.send(pieces())


def test_a_client_that_hangs_within_a_frame_is_cut() -> None:
    with Serving(ping_s=0.5) as server:
        raw = opened(server.port)
        with suppress(ConnectionError):
            raw.sendall(frame(BINARY, b"\x81", length=1000))  # and nothing more; a pong would be part of it
        assert ending(raw)[0] == 1011


def test_a_handshake_that_never_ends_is_cut() -> None:
    with Serving(handshake_s=0.3) as server:
        raw = socket.create_connection(("127.0.0.1", server.port), timeout=900)
        raw.sendall(UPGRADE[:40])
        assert ending(raw) == (None, "")


def test_connections_that_never_open_are_bounded_and_make_room_for_a_robot(server: Serving) -> None:
    """60 half handshakes where 20 have room: the oldest are cut off, and whoever opens for good is let in."""
    many = [socket.create_connection(("127.0.0.1", server.port), timeout=900) for _ in range(60)]
    cut = 0
    for raw in many[:40]:
        with suppress(ConnectionError):
            cut += raw.recv(1) == b""
    assert cut == 40
    with OpenpiLike(server.port) as robot:
        assert np.array_equal(robot.infer(libero_obs(2) | {"seed": 3})["actions"], expected(2, 3, 0))
    for raw in many:
        raw.close()


def test_the_address_with_most_unopened_connections_loses_its_oldest() -> None:
    class Connection:
        def __init__(self, address: str, port: int) -> None:
            self.remote_address = (address, port)

    robot, robots = Connection("10.0.0.1", 1), [Connection("10.0.0.2", 1)]
    crowd = [Connection("10.0.0.9", port) for port in range(5)]
    assert one_too_many([robot, *crowd, *robots]) is crowd[0]  # type: ignore[list-item]
    assert one_too_many([robot, *robots]) is robot  # type: ignore[list-item]


def test_large_pictures_do_not_keep_a_small_one_waiting() -> None:
    """Three large messages are being read, for as long as the test wants: a robot with small pictures is answered."""
    reading, go_on = threading.Event(), threading.Event()
    fitter = ImageFitter(size=8)

    def picture(image: Array) -> Array:
        if image.shape[0] == 600:
            reading.set()
            assert go_on.wait(900)
        return fitter(image)

    with Serving(image=picture) as server, ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        robots = [stack.enter_context(OpenpiLike(server.port)) for _ in range(4)]
        large = [pool.submit(robot.infer, libero_obs(number, size=600)) for number, robot in enumerate(robots[:3])]
        assert reading.wait(900)
        try:
            for _ in range(3):
                robots[3].infer(libero_obs(2))
            assert not any(answer.done() for answer in large)
        finally:
            go_on.set()
        for answer in large:
            answer.result(900)


def test_reading_counts_for_the_deadline() -> None:
    """A message that lay unread until its observation was stale is refused as one that waited for its turn."""
    fitter = ImageFitter(size=8)

    def slow(image: Array) -> Array:
        time.sleep(0.01)
        return fitter(image)

    with Serving(image=slow) as server, OpenpiLike(server.port) as robot:
        robot.infer(libero_obs(2))
        with pytest.raises(RuntimeError, match="too late to act"):
            robot.infer(libero_obs(2) | {"deadline_ms": 1})


def test_a_client_that_reads_nothing_is_cut() -> None:
    with Serving(max_unread_bytes=1 << 16) as server:
        raw = opened(server.port)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        cut = False
        for _ in range(3000):
            try:
                raw.sendall(frame(PING, bytes(125)) * 1000)
            except ConnectionError:
                cut = True
                break
        assert cut


def test_a_request_that_is_no_websocket_gets_a_plain_answer(server: Serving) -> None:
    status, text = get(server.port, "/")
    assert status == 426
    assert "WebSocket" in text
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=900)
    raw.sendall(b"\x16\x03\x01 this is TLS \r\n\r\n")
    assert raw.recv(4096) == b""
    raw.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.lists(
        st.binary(max_size=80)
        | st.builds(frame, st.integers(0, 15), st.binary(max_size=130), fin=st.booleans())
        | st.builds(frame, st.integers(0, 15), st.binary(max_size=20), length=st.integers(0, 2**63 - 1)),
        max_size=6,
    )
)
def test_fuzzed_frames(server: Serving, data: list[bytes]) -> None:
    raw = opened(server.port)
    with suppress(ConnectionError):
        raw.sendall(b"".join(data))
        raw.shutdown(socket.SHUT_WR)
    code, reason = ending(raw)
    assert code in (None, 1000, 1002, 1005, 1007, 1008, 1009, 1011)
    assert "\n" not in reason


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 700), patch=st.binary(min_size=1, max_size=8), cut=st.integers(0, 5))
def test_fuzzed_messages_are_answered(server: Serving, at: int, patch: bytes, cut: int) -> None:
    good = encode(libero_obs(0))
    bad = (good[:at] + patch + good[at + len(patch) :])[: len(good) - cut]
    with OpenpiLike(server.port) as client:
        client.socket.send(bad)
        answer = client.socket.recv(timeout=900)
        assert isinstance(answer, bytes) or "\n" not in answer


def test_memory_is_flat(server: Serving) -> None:
    def rounds(count: int) -> None:
        for _ in range(count):
            with OpenpiLike(server.port) as client:
                client.infer(libero_obs(0, size=16))
                client.socket.send(os.urandom(2000))
                client.socket.recv(timeout=900)
            raw = opened(server.port)
            raw.sendall(frame(BINARY, b"", fin=False) + frame(9, b"x"))
            raw.close()

    def held() -> int:
        """Bytes that are in use once the server has let go of all clients but the bystander."""
        while "embodied_rl_serve_clients 1\n" not in get(server.port, "/metrics")[1]:
            time.sleep(0.01)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    rounds(20)
    tracemalloc.start()
    try:
        rounds(20)
        before = held()
        rounds(60)
        assert held() - before < 200_000
    finally:
        tracemalloc.stop()
