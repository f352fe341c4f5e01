"""The websocket server: openpi's protocol, with bounds on everything that a client can make it spend.

A connection gets the metadata first, then one answer a request, in order: a binary message with `actions`, or a text of
one line that says why not, after which the connection goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from http import HTTPStatus
from socket import socket
from typing import Any

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.protocol import State

from embodied_rl.real_robot.client.wire import WireError, pack, unpack
from embodied_rl.real_robot.server.batcher import Batcher, Decide, LateError, Watch
from embodied_rl.real_robot.server.gate import WrongTokens, has_token, plain
from embodied_rl.real_robot.server.limits import ServerLimits
from embodied_rl.real_robot.server.messages import address_of, ending, name_of, one_too_many, receive
from embodied_rl.real_robot.server.metrics import ServerMetrics
from embodied_rl.real_robot.server.observations import PolicySpec, Request, RequestError, read_request
from embodied_rl.types import Array

GOING_AWAY, TRY_LATER = 1001, 1013
SHUTDOWN = "the server is shutting down"
_USUAL = ((256, 256), (480, 640))
"""Sizes of pictures that are tried before the first client comes."""
_LOOK_S, _LAST_WORDS_S = 1.0, 1.0
_SMALL_BYTES = 1 << 20
"""Up to this size a message is read beside the larger ones: two 480 x 640 pictures fit, and cost a few milliseconds."""
_log = logging.getLogger("embodied_rl.serve")
_library_log = logging.getLogger("embodied_rl.serve.websockets")
_library_log.setLevel(logging.CRITICAL)  # a stranger's broken handshake is counted, not printed


class PolicyServer:
    """Answers robots until `stop` is called.

    Args:
        decide: Called in one thread with the requests of a batch; see `ServedPolicy.decide`.
        spec: What the policy reads and answers.
        picture: Brings a picture to the policy's size.
        metadata: What a client is told first.
        seed: Of the draws of clients that send none: they get this seed, and the number of the decision in their
            connection.
        token: What clients must show; None lets everybody in.
        watch: Says what a failure detector makes of each observation; None without one. See `ServedDetector.see`.

    Example:
        >>> server = PolicyServer(served.decide, spec, ImageFitter(size=64), metadata={})
        >>> asyncio.run(server.run(listener, warm_up=lambda: None, on_ready=lambda: print("ready")))
    """

    def __init__(
        self,
        decide: Decide,
        spec: PolicySpec,
        image: Callable[[Array], Array],
        *,
        metadata: Mapping[str, Any],
        limits: ServerLimits | None = None,
        seed: int = 0,
        token: str | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.limits = limits or ServerLimits()
        self.metrics = ServerMetrics()
        self._decide, self._spec, self._image, self._see = decide, spec, image, watch
        self._first = pack(dict(metadata))
        self._seed, self._token = seed, token
        self._wrong = WrongTokens(self.limits.wrong_tokens, self.limits.wrong_tokens_s)
        self._opening: list[ServerConnection] = []
        """Connections that are not open yet, the oldest first."""
        self._clients: set[ServerConnection] = set()
        self._answering: set[ServerConnection] = set()
        # A client has one message here at most, so that in each of the two threads everybody has a turn.
        self._small_reader, self._large_reader = ThreadPoolExecutor(1, "reader"), ThreadPoolExecutor(1, "large-reader")
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Refuse new clients, answer the requests that are here, close, and let `run` return."""
        self._stopping.set()

    async def run(self, listener: socket, warm_up: Callable[[], None], on_ready: Callable[[], None]) -> None:
        """Serve on a bound socket that does not listen yet: whoever comes before `on_ready` finds nobody there.

        Args:
            warm_up: Runs first, in the thread that will decide.
            on_ready: Called once clients are heard.
        """
        self._batcher = Batcher(self._decide, self.limits, self.metrics, lambda: len(self._clients), self._see)
        await self._batcher.in_thread(warm_up)
        for height, width in _USUAL if self._spec.cameras else ():
            self._image(np.zeros((height, width, 3), np.uint8))
        if self._stopping.is_set():
            return
        working = asyncio.create_task(self._batcher.run())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            async with self._serve(listener) as server:
                on_ready()
                await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
                self._stopping.set()
                await self._drain(server, working)
        finally:
            stopping.cancel()
            working.cancel()
            for reader in (self._small_reader, self._large_reader):
                reader.shutdown(wait=False, cancel_futures=True)
            with contextlib.suppress(asyncio.CancelledError):
                await working  # raises what ended it, if it was not this

    def _serve(self, listener: socket) -> AbstractAsyncContextManager[Server]:
        limits = self.limits
        return serve(
            self._client,
            sock=listener,
            process_request=self._open,
            create_connection=self._connection_class(),
            compression=None,
            open_timeout=limits.handshake_s,
            ping_interval=limits.ping_s,
            ping_timeout=limits.ping_s,
            close_timeout=2,
            max_size=limits.max_message_bytes,
            max_queue=1,
            server_header=None,
            logger=_library_log,
        )

    async def _drain(self, server: Server, working: asyncio.Task[None]) -> None:
        until = time.monotonic() + self.limits.drain_s
        server.close(close_connections=False)
        while self._answering and not working.done() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        working.cancel()
        until = time.monotonic() + _LAST_WORDS_S
        while self._answering and time.monotonic() < until:  # those that wait in vain are told so
            await asyncio.sleep(0.01)
        await asyncio.gather(*(client.close(GOING_AWAY, SHUTDOWN) for client in self._clients))

    def _connection_class(self) -> type[ServerConnection]:
        owner = self

        class Bounded(ServerConnection):
            """Makes room where too many connections wait to be opened."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                owner._opening.append(self)
                if len(owner._opening) > owner.limits.max_pending:
                    cut = one_too_many(owner._opening)
                    owner._opened(cut)  # the loop hears of its end only after others of the same burst came
                    cut.transport.abort()

            def connection_lost(self, exc: Exception | None) -> None:
                owner._opened(self)
                super().connection_lost(exc)

        return Bounded

    def _opened(self, connection: ServerConnection) -> None:
        """It no longer waits to be opened."""
        with contextlib.suppress(ValueError):
            self._opening.remove(connection)

    def _open(self, connection: ServerConnection, request: HttpRequest) -> Response | None:
        path = request.path.partition("?")[0]
        if path == "/healthz":
            well = not self._stopping.is_set()
            status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
            return plain(connection, status, "OK\n" if well else "shutting down\n")
        if not has_token(request, self._token):
            # Before the tries are counted: a robot with the token shares its address with whoever has none.
            address = address_of(connection)
            if self._wrong.too_many(address):
                self.metrics.refused["tries"] += 1
                text = f"too many wrong tokens came from your address: wait {self.limits.wrong_tokens_s:g} s\n"
                return plain(connection, HTTPStatus.TOO_MANY_REQUESTS, text)
            self.metrics.refused["token"] += 1
            if "Authorization" in request.headers:
                self._wrong.add(address)
            text = "this server wants its token: Authorization: Bearer TOKEN\n"
            return plain(connection, HTTPStatus.UNAUTHORIZED, text)
        if path == "/metrics":
            text = self.metrics.text(
                clients=len(self._clients), waiting=len(self._batcher), ready=not self._stopping.is_set()
            )
            return plain(connection, HTTPStatus.OK, text, "text/plain; version=0.0.4; charset=utf-8")
        if "Origin" in request.headers:  # a web page in somebody's browser could reach 127.0.0.1 otherwise
            self.metrics.refused["origin"] += 1
            return plain(connection, HTTPStatus.FORBIDDEN, "web pages may not connect: robots send no Origin\n")
        if len(self._clients) >= self.limits.max_clients:
            self.metrics.refused["full"] += 1
            text = f"all {self.limits.max_clients} places are taken: try again later, or raise --max-clients\n"
            return plain(connection, HTTPStatus.SERVICE_UNAVAILABLE, text)
        return None

    async def _client(self, connection: ServerConnection) -> None:
        self._opened(connection)
        if len(self._clients) >= self.limits.max_clients:  # several were let in at the same time
            self.metrics.refused["full"] += 1
            await connection.close(TRY_LATER, f"all {self.limits.max_clients} places are taken: try again later")
            return
        self._clients.add(connection)
        self.metrics.connections += 1
        watching = asyncio.create_task(self._watch(connection))
        _log.info("%s connected: %d of %d", name_of(connection), len(self._clients), self.limits.max_clients)
        try:
            await self._talk(connection)
        except ConnectionClosed:
            pass
        except TimeoutError:
            connection.transport.abort()  # it reads nothing, so it would not read a reason either
        except Exception:
            _log.exception("an error of this program: the connection of %s is closed", name_of(connection))
            raise
        finally:
            watching.cancel()
            self._clients.discard(connection)
            self._answering.discard(connection)
            self._batcher.client_left()
            _log.info("%s left: %s", name_of(connection), ending(connection))

    async def _talk(self, connection: ServerConnection) -> None:
        await self._send(connection, self._first)
        counter, took = 0, None
        while True:
            data = await receive(connection, self.limits.message_s)
            if data is None:
                return
            began = time.monotonic()
            self._answering.add(connection)
            answer = await self._answer(connection, data, counter, took)
            await self._send(connection, answer)
            self._answering.discard(connection)
            took = time.monotonic() - began
            counter += not isinstance(answer, str)
            if self._stopping.is_set():
                await connection.close(GOING_AWAY, SHUTDOWN)
                return

    async def _answer(
        self, connection: ServerConnection, data: bytes | str, counter: int, took: float | None
    ) -> bytes | str:
        """What goes back for one message. took: seconds of the answer before it."""
        result = "error"
        try:
            self.metrics.received += len(data)
            began = time.monotonic()
            reader = self._small_reader if len(data) <= _SMALL_BYTES else self._large_reader
            request = await asyncio.get_running_loop().run_in_executor(reader, self._read, data)
            read_ms = 1000 * (time.monotonic() - began)
            request = dataclasses.replace(request, **self._draw(request, counter))
            decision = await self._batcher.submit(request, lambda: connection.state is State.OPEN, began)
            result = "ok"
        except LateError as error:
            result = "late"
            return str(error)
        except (WireError, RequestError) as error:
            return str(error)
        finally:
            self.metrics.requests[result] += 1
        timing = {"infer_ms": decision.infer_ms, "queue_ms": decision.queue_ms, "read_ms": read_ms}
        if took is not None:
            timing["prev_total_ms"] = 1000 * took
        said = {
            "actions": decision.actions,
            "server_timing": timing | {"batch_rows": decision.rows},
            "policy_timing": {"infer_ms": decision.infer_ms},
            "seed": request.seed,
            "decision": request.decision,
        }
        return pack(said if decision.seen is None else said | {"detector": dict(decision.seen)})

    def _read(self, data: bytes | str) -> Request:
        if isinstance(data, str):
            raise WireError("a request is one binary message of msgpack, got a text")
        return read_request(unpack(data), self._spec, self._image)

    def _draw(self, request: Request, counter: int) -> dict[str, int]:
        """Which numbers a request's draws come from: a seed that is sent decides alone, with `decision` or 0."""
        if request.seed is not None:
            return {"decision": request.decision or 0}
        return {"seed": self._seed, "decision": counter if request.decision is None else request.decision}

    async def _send(self, connection: ServerConnection, answer: bytes | str) -> None:
        async with asyncio.timeout(self.limits.message_s):
            await connection.send(answer)
        self.metrics.sent += len(answer)

    async def _watch(self, connection: ServerConnection) -> None:
        """Cut a client off that makes the server write, pongs for instance, and reads nothing."""
        while connection.transport.get_write_buffer_size() <= self.limits.max_unread_bytes:
            await asyncio.sleep(_LOOK_S)
        connection.transport.abort()
