"""CPU threads that take work side by side, and leave half of themselves to others while those are busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        # the number of threads inside an operator is each thread's own setting
        self._pool = ThreadPoolExecutor(count, name, initializer=torch.set_num_threads, initargs=(inner,))

    def map(self, work: Callable[[InT], OutT], items: Sequence[InT]) -> list[OutT]:
        """`work` of each item, in order: half of the threads work while `busy()`, all as soon as it is over.

        Raises what `work` raises, once no thread works any more.
        """
        futures: list[Future[OutT]] = []
        try:
            while len(futures) < len(items):
                running = [future for future in futures if not future.done()]
                if len(running) < (max(1, self.count // 2) if self.busy() else self.count):
                    futures.append(self._pool.submit(work, items[len(futures)]))
                else:
                    wait(running, _LOOK_SECONDS, FIRST_COMPLETED)
            return [future.result() for future in futures]
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
