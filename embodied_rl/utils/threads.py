"""CPU threads that take work side by side, and leave half of themselves to others while those are busy."""

from __future__ import annotations

import os
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

_LOOK_SECONDS = 0.02
"""How often it looks whether others still want their half."""


class WorkerPool:
    """`count` threads, each with `inner` threads of torch's inside an operator.

    One inside each, and several pieces of work side by side, wastes less than several inside small operators, which
    mostly wait for one another. half: of the cores, to which they keep in what they begin while others are busy (see
    `Cores`); not with threads inside operators, which would keep to it for ever.
    """

    def __init__(self, count: int, name: str, *, inner: int = 1, half: Literal["lower", "upper"] | None = None) -> None:
        if half is not None and inner > 1:
            raise ValueError("threads inside operators would stay on the cores where they were made")
        self.count = count
        self.busy: Callable[[], bool] = lambda: False
        self._cores = None if half is None else Cores(half)
        self._pool = ThreadPoolExecutor(count, name, initializer=set_torch_threads, initargs=(inner,))

    def settle(self) -> None:
        """Called by one of the threads before it begins: go where it may work now."""
        if self._cores is not None:
            self._cores.keep_to_half(self.busy())

    def map(self, work: Callable[[InT], OutT], items: Iterable[InT]) -> list[OutT]:
        """`work` of each item, in order, and errors as with `OrderedMap`."""
        outs: list[OutT] = []
        line = OrderedMap(self, work, outs.append)
        for item in items:
            line.put(item)
        line.finish()
        return outs

    def submit(self, work: Callable[[InT], OutT], item: InT) -> Future[OutT]:
        """`work` of an item in one of the threads."""
        return self._pool.submit(work, item)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class Cores:
    """A core of its own for the calling thread, on machines that have two.

    There Linux leaves one core idle for milliseconds while two threads share the other, if threads sleep and wake
    often, as those do that wait for the interpreter. Two that each keep to one core never share it. Without effect
    where this process may use more or fewer than two cores, or where threads may not choose (macOS, some sandboxes).
    """

    def __init__(self, half: Literal["lower", "upper"]) -> None:
        self._half = half
        self._able = hasattr(os, "sched_setaffinity")
        self._kept = threading.local()

    def keep_to_half(self, keep: bool) -> None:
        """The calling thread keeps to its core from now on, or may go everywhere."""
        if not self._able or keep == getattr(self._kept, "kept", False):
            return
        cores = sorted(os.sched_getaffinity(os.getpid()))  # the main thread's, which never keeps to one
        if keep and len(cores) != 2:
            return
        try:
            os.sched_setaffinity(0, {cores[0 if self._half == "lower" else 1]} if keep else cores)
        except OSError:  # not allowed, or the process lost a core this moment: going everywhere is only slower
            self._able = False
        else:
            self._kept.kept = keep


class OrderedMap(Generic[InT, OutT]):
    """Work that comes bit by bit: results go to `done` in the order of the items, in the thread that calls the methods.

    Half of the threads work while they are `busy()`, all as soon as it is over; at most twice as many items as threads
    are under way or wait for one before them. What `work` raises is raised once no thread works any more.
    """

    def __init__(self, threads: WorkerPool, work: Callable[[InT], OutT], done: Callable[[OutT], None]) -> None:
        self._threads = threads
        self._work = work
        self._done = done
        self._futures: deque[Future[OutT]] = deque()
        self._ended = 0.0

    @property
    def worked_until(self) -> float:
        """Now, or when a thread last ended an item (s, of time.perf_counter)."""
        return time.perf_counter() if self.working else self._ended

    @property
    def working(self) -> bool:
        """Whether a thread works on an item; any thread may ask."""
        return any(not future.done() for future in list(self._futures))

    def put(self, item: InT) -> None:
        """Begin with an item, as soon as a thread may take it; until then take what is done."""
        with self._orderly():
            while not self._room():
                self._take(wait_for_one=True)
            self._futures.append(self._threads.submit(self._timed, item))
            self._take(wait_for_one=False)

    def finish(self) -> None:
        """Wait for all items."""
        with self._orderly():
            while self._futures:
                self._take(wait_for_one=True)

    def _timed(self, item: InT) -> OutT:
        self._threads.settle()
        try:
            return self._work(item)
        finally:
            self._ended = time.perf_counter()

    def _room(self) -> bool:
        count = self._threads.count
        running = sum(not future.done() for future in self._futures)
        return running < (max(1, count // 2) if self._threads.busy() else count) and len(self._futures) < 2 * count

    def _take(self, *, wait_for_one: bool) -> None:
        if wait_for_one and not self._futures[0].done():
            wait([future for future in self._futures if not future.done()], _LOOK_SECONDS, FIRST_COMPLETED)
        while self._futures and self._futures[0].done():
            self._done(self._futures.popleft().result())

    @contextmanager
    def _orderly(self) -> Iterator[None]:
        """After an error or Ctrl-C nothing goes on behind the caller's back."""
        try:
            yield
        except BaseException:
            wait(self._futures)
            self._futures.clear()
            raise


def shared_cores(cores: int) -> int:
    """Threads for each of acting and learning where both share a CPU's cores with the simulator at the same time.

    Half the cores: they seldom have work all at once, and more threads than cores slow each other down.
    """
    return max(1, cores // 2)


def set_torch_threads(count: int) -> None:
    """Let torch use `count` threads inside an operator that this thread calls, whatever other threads set later.

    torch keeps the number for each thread, but a thread that has not asked for it yet still takes the latest number
    that any thread has set.
    """
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
