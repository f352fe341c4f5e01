"""A robot's connection to `embodied-rl serve`: one observation out, one chunk of actions back."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.client.wire import WireError, pack, short, unpack

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

MAX_ANSWER = 16 << 20
"""Bytes of an answer."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_TRY_LATER = 503
_OF_THE_MESSAGE = (1003, 1007, 1008, 1009)
"""Close codes that say that the message is at fault: sending it again helps nothing."""


class PolicyServerError(RuntimeError):
    """The server refused a request, in one line; the connection goes on."""


class PolicyConnectionError(ConnectionError):
    """The server cannot be reached, refused the connection, or did not answer in time."""


class PolicyUnreachableError(PolicyConnectionError):
    """The server was not there in time; it may still be loading."""


class PolicyClient:
    """Asks a policy server for actions; connects again by itself when the connection is lost.

    Each request carries this client's seed and the number of the decision since `reset`: a lost connection, and which
    other robots ask at the same time, do not change what is drawn.

    Args:
        host: Name or address of the server, or a whole ws:// or wss:// address.
        port: TCP port; None where `host` is a whole address.
        token: The server's token; None where it has none.
        timeout: Seconds from a request to its answer. A late answer is never returned.
        connect_timeout: Seconds in which the first connection must be made, over all attempts: a server that is still
            loading is waited for. A lost one is made again within `timeout`.
        retries: How often a request is sent again after a lost connection; 0 for never.
        seed: Of what the policy draws, from 0.

    Raises:
        PolicyUnreachableError: The server cannot be reached in `connect_timeout`.
        PolicyConnectionError: It refused the connection, or is no policy server.

    Example:
        >>> with PolicyClient("gpu-box", 8000) as client:
        ...     client.reset()
        ...     answer = client.infer({"images": images, "proprio": proprio, "instruction": "open the drawer"})
        ...     print(answer["actions"].shape)
        (4, 7)
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = 8000,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        connect_timeout: float = 30.0,
        retries: int = 2,
        seed: int = 0,
    ) -> None:
        self._uri = _address(host, port)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._timeout, self._retries = timeout, retries
        self._seed, self._decision = seed, 0
        self._lock = threading.Lock()
        self._closed = False
        self._metadata: dict[str, Any] = {}
        self._opened = ExitStack()
        self._connection: ClientConnection | None = self._connected(connect_timeout)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the server says about its policy: what it reads, `chunk_len`, `action_dim`, limits."""
        return self._metadata

    def infer(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for the actions of one observation.

        Args:
            obs: In one of the server's layouts; a `seed` or `decision` in it counts in place of the client's.

        Returns:
            `actions`, finite float32 [K, A]; `server_timing`, in ms; `seed` and `decision` that were used.

        Raises:
            PolicyServerError: The server refused this request; the text says why.
            PolicyConnectionError: No answer in `timeout`, or no connection after `retries` more attempts.
        """
        with self._lock:
            answer = self._answer(pack({"seed": self._seed, "decision": self._decision, **obs}))
            self._decision += 1
        return answer

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode: decisions count from 0 again; `seed` replaces the client's."""
        with self._lock:
            self._decision = 0
            self._seed = self._seed if seed is None else seed

    def close(self) -> None:
        """Close the connection; it is not made again."""
        self._closed = True
        self._drop()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, data: bytes) -> dict[str, Any]:
        from websockets.exceptions import ConnectionClosed

        for left in range(self._retries, -1, -1):
            if self._closed:
                raise PolicyConnectionError("the client is closed")
            try:
                if self._connection is None:
                    self._connection = self._connected(self._timeout)
                answer = self._exchange(self._connection, data)
            except TimeoutError:
                self._drop()  # the late answer must not be taken for the next one's
                raise PolicyConnectionError(f"{self._uri} did not answer in {self._timeout:g} s") from None
            except ConnectionClosed as error:
                self._drop()
                code = None if error.rcvd is None else error.rcvd.code
                if not left or code in _OF_THE_MESSAGE:
                    raise PolicyConnectionError(f"lost {self._uri}: {short(error)}") from error
                continue
            except BaseException:  # Ctrl-C: the answer is still on its way
                self._drop()
                raise
            if isinstance(answer, str):
                raise PolicyServerError(answer)
            return self._checked(answer)
        raise AssertionError("unreachable")

    def _exchange(self, connection: ClientConnection, data: bytes) -> str | bytes:
        """Send a request and receive its answer; TimeoutError where both take longer than `timeout`.

        Sending has no limit of its own: a server that reads nothing would make it wait for good.
        """
        from websockets.exceptions import ConnectionClosed

        deadline = time.monotonic() + self._timeout
        cut = threading.Timer(self._timeout, _cut, [connection])
        cut.daemon = True
        cut.start()
        try:
            connection.send(data)
        except ConnectionClosed:
            if time.monotonic() >= deadline:
                raise TimeoutError from None
            raise
        finally:
            cut.cancel()
        return connection.recv(timeout=max(0.0, deadline - time.monotonic()))

    def _checked(self, data: bytes) -> dict[str, Any]:
        try:
            answer = unpack(data)
            actions = answer["actions"]
            sound = actions.ndim == 2 and bool(np.isfinite(actions).all())
        except (WireError, KeyError, TypeError, AttributeError) as error:
            raise PolicyServerError(f"{self._uri} answered something else: {short(error)}") from error
        if not sound:
            raise PolicyServerError(f"{self._uri} answered actions {actions.shape} that are not finite [K, A]")
        return answer

    def _connected(self, seconds: float) -> ClientConnection:
        """A connection whose metadata is read; PolicyConnectionError after `seconds`, or where no waiting helps."""
        deadline, pause = time.monotonic() + seconds, _FIRST_PAUSE_S
        while True:
            try:
                return self._try(max(0.05, deadline - time.monotonic()))
            except _NotNow as error:
                if time.monotonic() + pause >= deadline:
                    raise PolicyUnreachableError(f"cannot reach {self._uri}: {error}") from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _try(self, seconds: float) -> ClientConnection:
        connect = _library()
        from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

        deadline = time.monotonic() + seconds
        try:
            opening = connect(
                self._uri,
                compression=None,
                max_size=MAX_ANSWER,
                additional_headers=self._headers,
                open_timeout=seconds,
                close_timeout=1,
                proxy=None,
            )
            connection: ClientConnection = self._opened.enter_context(opening)
            first = connection.recv(timeout=max(0.05, deadline - time.monotonic()))
            metadata = first if isinstance(first, str) else unpack(first)
        except InvalidStatus as error:
            status, body = error.response.status_code, (error.response.body or b"").decode("utf-8", "replace")
            if status == _TRY_LATER:
                raise _NotNow(short(body)) from error
            raise PolicyConnectionError(f"{self._uri} refused the connection ({status}): {short(body)}") from error
        except (ConnectionClosed, OSError) as error:
            self._opened.close()
            raise _NotNow(short(error) or type(error).__name__) from error
        except (WebSocketException, WireError) as error:
            self._opened.close()
            raise PolicyConnectionError(f"{self._uri} is no policy server: {short(error)}") from error
        if not isinstance(metadata, dict):
            self._opened.close()
            raise PolicyConnectionError(f"{self._uri} is no policy server: it begins with {short(repr(metadata))}")
        self._metadata = metadata
        return connection

    def _drop(self) -> None:
        self._connection = None
        self._opened.close()


def _cut(connection: ClientConnection) -> None:
    """End a connection under whoever sends on it."""
    with suppress(OSError):
        connection.socket.shutdown(socket.SHUT_RDWR)


class _NotNow(Exception):
    """The server cannot be reached at the moment."""


def _address(host: str, port: int | None) -> str:
    if "://" in host:
        return host if port is None else f"{host.rstrip('/')}:{port}"
    name = f"[{host}]" if ":" in host else host
    return f"ws://{name}" if port is None else f"ws://{name}:{port}"


def _library() -> Any:
    try:
        import msgpack  # noqa: F401 - whoever connects will pack
        from websockets.sync.client import connect
    except ImportError as error:
        raise UserError("the client needs websockets and msgpack: pip install websockets msgpack") from error
    return connect
