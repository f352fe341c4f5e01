"""CPU threads that take microbatches side by side, and leave half of themselves to others while those are busy."""

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
    """`count` threads, each of which runs its torch operators alone."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.busy: Callable[[], bool] = lambda: False
        # the number of threads inside an operator is each thread's own setting
        self._pool = ThreadPoolExecutor(count, "learn", initializer=torch.set_num_threads, initargs=(1,))

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
