"""CPU threads that take work side by side, and leave half of themselves to others while those are busy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

InT = TypeVar("InT")
OutT = TypeVar("OutT")

_LOOK_SECONDS = 0.02
"""How often it looks whether others still want their half."""


class Threads:
    """`count` threads, each with `inner` threads of torch's inside an operator.

    One inside each, and several pieces of work side by side, wastes less than several inside small operators, which
    mostly wait for one another.
    """

    def __init__(self, count: int, name: str, *, inner: int = 1) -> None:
        self.count = count
        self.busy: Callable[[], bool] = lambda: False
        self._pool = ThreadPoolExecutor(count, name, initializer=set_torch_threads, initargs=(inner,))

    def map(self, work: Callable[[InT], OutT], items: Sequence[InT]) -> Iterator[OutT]:
        """`work` of each item, in order: half of the threads work while `busy()`, all as soon as it is over.

        At most twice as many results as threads wait to be taken. Raises what `work` raises, once no thread works any
        more.
        """
        futures: deque[Future[OutT]] = deque()
        begun = 0
        try:
            while begun < len(items) or futures:
                running = [future for future in futures if not future.done()]
                threads = max(1, self.count // 2) if self.busy() else self.count
                if begun < len(items) and len(running) < threads and len(futures) < 2 * self.count:
                    futures.append(self._pool.submit(work, items[begun]))
                    begun += 1
                elif futures[0].done():
                    yield futures.popleft().result()
                else:
                    wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
        finally:
            wait(futures)  # after an error or Ctrl-C nothing goes on behind the caller's back

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


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
