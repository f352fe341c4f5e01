"""One queue of requests, and one thread that decides as many of them together as wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from embodied_rl.real_robot.server.limits import ServerLimits
from embodied_rl.real_robot.server.metrics import ServerMetrics
from embodied_rl.real_robot.server.observations import Request, RequestError
from embodied_rl.types import Array

T = TypeVar("T")
Decide = Callable[[Sequence[Request]], list[Array | str]]
Watch = Callable[[Request], Mapping[str, Any] | str]
"""What a failure detector says of an observation (`ServedDetector.see`), or one line that says why nothing."""


class LateError(RequestError):
    """A request waited so long that its observation is stale."""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """actions: finite float32 [K, A]; times in ms; rows: requests that were decided in the same call; seen: what the
    failure detector says of the observation, None without one."""

    actions: Array
    queue_ms: float
    infer_ms: float
    rows: int
    seen: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Waiting:
    request: Request
    answer: asyncio.Future[BatchResult]
    wanted: Callable[[], bool]
    since: float
    until: float


class Batcher:
    """Collects requests into batches, first come first served.

    A client has one request here at most, so the queue is as short as the list of clients. While a batch is decided,
    the next one gathers.

    Args:
        decide: Runs in the one thread of this object.
        clients: How many clients are connected now.
        watch: Runs in the same thread, for each request that has actions; None without a failure detector.

    Example:
        >>> batcher = Batcher(served.decide, limits, ServerMetrics(), lambda: 1)
        >>> running = asyncio.create_task(batcher.run())
        >>> decision = await batcher.submit(request, lambda: True)
    """

    def __init__(
        self,
        decide: Decide,
        limits: ServerLimits,
        metrics: ServerMetrics,
        clients: Callable[[], int],
        watch: Watch | None = None,
    ) -> None:
        self._decide, self._limits, self._metrics, self._clients = decide, limits, metrics, clients
        self._watch = watch
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "policy")

    def __len__(self) -> int:
        return len(self._queue)

    async def submit(self, request: Request, wanted: Callable[[], bool], arrived: float) -> BatchResult:
        """The decision of one request.

        Args:
            wanted: Whether anybody still waits for the answer; asked just before the request is decided.
            arrived: When its message was here, s of the monotonic clock: its deadline counts from there.

        Raises:
            LateError: It waited longer than its deadline.
            RequestError: The policy has no actions for it; the text says why.
        """
        now = time.monotonic()
        longest = min(request.deadline_ms or self._limits.deadline_ms, self._limits.deadline_ms)
        answer = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(request, answer, wanted, now, arrived + longest / 1000))
        self._arrived.set()
        return await answer

    def client_left(self) -> None:
        """A batch that waits for others looks again how many there are."""
        self._arrived.set()

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns, in the thread that decides."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def run(self) -> None:
        """Decide batches until cancelled."""
        try:
            while True:
                while not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                await self._gather()
                batch = self._take()
                if batch:
                    await self._decide_batch(batch)
        finally:
            _give_up(self._queue)
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self) -> None:
        """Wait for the other clients' requests, up to the longest delay of the first one."""
        until = self._queue[0].since + self._limits.max_batch_delay_ms / 1000
        while len(self._queue) < min(self._limits.max_batch, self._clients()):
            left = until - time.monotonic()
            if left <= 0:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._queue and len(batch) < self._limits.max_batch:
            waiting = self._queue.popleft()
            waited = time.monotonic() - waiting.since
            if not waiting.wanted():
                waiting.answer.set_exception(RequestError("its client has left"))
            elif time.monotonic() > waiting.until:
                waiting.answer.set_exception(LateError(f"waited {1000 * waited:.0f} ms for its turn: too late to act"))
            else:
                batch.append(waiting)
                self._metrics.queue.add(waited)
        return batch

    async def _decide_batch(self, batch: list[_Waiting]) -> None:
        began = time.monotonic()
        requests = [waiting.request for waiting in batch]
        try:
            answers = await self.in_thread(lambda: self._decided(requests))
        except BaseException:
            _give_up(batch)
            raise
        seconds = time.monotonic() - began
        self._metrics.infer.add(seconds)
        self._metrics.batch.add(len(batch))
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():  # its client has left
                continue
            if isinstance(answer, str):
                waiting.answer.set_exception(RequestError(answer))
            else:
                queued = 1000 * (began - waiting.since)
                actions, seen = answer
                waiting.answer.set_result(BatchResult(actions, queued, 1000 * seconds, len(batch), seen))

    def _decided(self, requests: Sequence[Request]) -> list[tuple[Array, Mapping[str, Any] | None] | str]:
        """For each request its actions and what is seen, or why there are none."""
        found = list[tuple[Array, Mapping[str, Any] | None] | str]()
        for request, answer in zip(requests, self._decide(requests), strict=True):
            if isinstance(answer, str) or self._watch is None:
                found.append(answer if isinstance(answer, str) else (answer, None))
            else:
                seen = self._watch(request)
                found.append(seen if isinstance(seen, str) else (answer, seen))
        return found


def _give_up(waiting: Iterable[_Waiting]) -> None:
    for one in waiting:
        if not one.answer.done():
            one.answer.set_exception(RequestError("the server stopped before this request was decided"))
