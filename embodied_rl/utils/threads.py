"""CPU threads that work side by side, and the cores that rollout and learner share."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Generic, Literal, TypeVar

import torch

InT = TypeVar("InT")
OutT = TypeVar("OutT")
Side = Literal["rollout", "learner"]

_LOOK_SECONDS = 0.02
"""How often a pool looks whether the other side is still at work."""


class CoreBudget:
    """Which of the two sides that share the cores is at work; a side's pool uses half of its threads while both are.

    Example:
        >>> cores = CoreBudget()
        >>> with cores.at_work("learner"):
        ...     cores.busy("learner")
        True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count: dict[Side, int] = {"rollout": 0, "learner": 0}
        self._ended: dict[Side, float] = {"rollout": 0.0, "learner": 0.0}

    def begin(self, side: Side) -> None:
        """A piece of work of this side begins; `end` must follow."""
        with self._lock:
            self._count[side] += 1

    def end(self, side: Side) -> None:
        """A piece of work of this side has ended."""
        with self._lock:
            self._count[side] -= 1
            self._ended[side] = time.perf_counter()

    @contextmanager
    def at_work(self, side: Side) -> Iterator[None]:
        """The `with` block is a piece of work of this side."""
        self.begin(side)
        try:
            yield
        finally:
            self.end(side)

    def busy(self, side: Side) -> bool:
        """Whether this side is at work."""
        return self._count[side] > 0

    def busy_until(self, side: Side) -> float:
        """Now if this side is at work, else when it last was (s, of time.perf_counter)."""
        with self._lock:
            return time.perf_counter() if self._count[side] else self._ended[side]


class WorkerPool:
    """Threads that each take a piece of work, with `inner` torch threads inside an operator.

    Several pieces side by side with one thread inside each are faster than several threads inside small operators.

    Args:
        count: number of threads.
        cores: budget of the cores that the pool shares; without one it always uses all of its threads.
        side: whose pool it is.
    """

    def __init__(
        self, count: int, name: str, *, inner: int = 1, cores: CoreBudget | None = None, side: Side = "learner"
    ) -> None:
        self.count = count
        self._cores = cores
        self._side: Side = side
        self._other: Side = "rollout" if side == "learner" else "learner"
        self._pool = ThreadPoolExecutor(count, name, initializer=set_torch_threads, initargs=(inner,))

    def available(self) -> int:
        """How many threads may work now."""
        halved = self._cores is not None and self._cores.busy(self._other)
        return max(1, self.count // 2) if halved else self.count

    def map(self, work: Callable[[InT], OutT], items: Iterable[InT]) -> list[OutT]:
        """`work` of each item, in order; errors as in `OrderedMap`."""
        outs: list[OutT] = []
        line = OrderedMap(self, work, outs.append)
        for item in items:
            line.put(item)
        line.finish()
        return outs

    def submit(self, work: Callable[[InT], OutT], item: InT) -> Future[OutT]:
        """`work` of an item in one of the threads."""
        if self._cores is None:
            return self._pool.submit(work, item)
        self._cores.begin(self._side)
        return self._pool.submit(self._counted, self._cores, work, item)

    def _counted(self, cores: CoreBudget, work: Callable[[InT], OutT], item: InT) -> OutT:
        try:
            return work(item)
        finally:
            cores.end(self._side)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class OrderedMap(Generic[InT, OutT]):
    """Work on items that come one by one; `done` gets the results in the order of the items, in the caller's thread.

    At most twice as many items as threads are under way or wait for an earlier one, because a result may be as large
    as the weights. An error is raised once no thread works any more.
    """

    def __init__(self, threads: WorkerPool, work: Callable[[InT], OutT], done: Callable[[OutT], None]) -> None:
        self._threads = threads
        self._work = work
        self._done = done
        self._futures: deque[Future[OutT]] = deque()

    def put(self, item: InT) -> None:
        """Begin with an item as soon as a thread may take it; until then take what is done."""
        with self._stop_on_error():
            while not self._room():
                self._take(wait_for_one=True)
            self._futures.append(self._threads.submit(self._work, item))
            self._take(wait_for_one=False)

    def finish(self) -> None:
        """Wait for all items."""
        with self._stop_on_error():
            while self._futures:
                self._take(wait_for_one=True)

    def _room(self) -> bool:
        running = sum(not future.done() for future in self._futures)
        return running < self._threads.available() and len(self._futures) < 2 * self._threads.count

    def _take(self, *, wait_for_one: bool) -> None:
        if wait_for_one and not self._futures[0].done():
            wait([future for future in self._futures if not future.done()], _LOOK_SECONDS, FIRST_COMPLETED)
        while self._futures and self._futures[0].done():
            self._done(self._futures.popleft().result())

    @contextmanager
    def _stop_on_error(self) -> Iterator[None]:
        """After an error or Ctrl-C nothing goes on behind the caller's back."""
        try:
            yield
        except BaseException:
            wait(self._futures)
            self._futures.clear()
            raise


def shared_cores(cores: int) -> int:
    """Threads for each of acting and learning where both share a CPU's cores with the simulator: half the cores."""
    return max(1, cores // 2)


def set_torch_threads(count: int) -> None:
    """Let torch use `count` threads inside operators that this thread calls, whatever other threads set later.

    Denormal numbers count, as in every other thread: a library may have switched them off in the one that loaded it,
    whose children inherit that.
    """
    torch.set_flush_denormal(False)
    # torch keeps the number by thread, but a thread that never asked for it takes the latest one set anywhere.
    torch.get_num_threads()
    torch.set_num_threads(count)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """`count` threads inside the operators that this thread calls in the `with` block, and then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
