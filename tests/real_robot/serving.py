"""A policy server in a thread, with a policy of a few lines of NumPy that is the same in any batch."""

from __future__ import annotations

import asyncio
import socket
import threading
import zlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from embodied_rl.real_robot.server.app import PolicyServer
from embodied_rl.real_robot.server.batcher import Watch
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.limits import ServerLimits
from embodied_rl.real_robot.server.observations import PolicySpec, Request
from embodied_rl.rng import philox
from embodied_rl.types import Array

SPEC = PolicySpec(cameras=2, image_size=8, proprio_dim=8, chunk_len=3, action_dim=7)


def decide_one(request: Request) -> Array:
    """A chunk that depends on all of a request and on nothing else."""
    words = zlib.crc32(request.instruction.encode() + request.images.tobytes() + request.proprio.tobytes())
    assert request.seed is not None
    assert request.decision is not None
    noise = philox(request.seed, request.decision).random((3, 7), np.float32)
    return np.float32(words / 2**33) + noise / 2


def decide_all(requests: Sequence[Request]) -> list[Array | str]:
    """Each for itself."""
    return [decide_one(request) for request in requests]


class Serving:
    """`with Serving() as server:` answers at `server.port`."""

    def __init__(
        self,
        decide: Callable[[Sequence[Request]], list[Array | str]] = decide_all,
        *,
        port: int = 0,
        token: str | None = None,
        image: Callable[[Array], Array] | None = None,
        watch: Watch | None = None,
        **limits: Any,
    ) -> None:
        self.batches: list[int] = []
        self._image, self._watch = image or ImageFitter(size=8), watch
        self._decide, self._token, self._limits = decide, token, ServerLimits(**limits)
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.error: BaseException | None = None

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.server = PolicyServer(
            self._counted,
            SPEC,
            self._image,
            metadata={"server": "test"},
            limits=self._limits,
            seed=5,
            token=self._token,
            watch=self._watch,
        )
        try:
            await self.server.run(self._listener, lambda: None, self._ready.set)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        finally:
            self._ready.set()

    def _counted(self, requests: Sequence[Request]) -> list[Array | str]:
        self.batches.append(len(requests))
        return self._decide(requests)

    def stop(self) -> None:
        """As SIGTERM does."""
        self._loop.call_soon_threadsafe(self.server.stop)

    def wait(self) -> None:
        """Until it has stopped."""
        self._thread.join(60)
        assert not self._thread.is_alive()

    def __enter__(self) -> Serving:
        self._thread.start()
        assert self._ready.wait(900)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.stop()
        self.wait()
        self._listener.close()
