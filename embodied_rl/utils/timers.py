"""Where the time goes: wall and CPU seconds by stage (act, simulate, render, update, ...)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from embodied_rl.utils.timeline import LEARNER, Span


class StageClock:
    """Sums of wall and process-CPU seconds; entering a stage costs about a microsecond. Stages do not nest.

    keep: how many spans to remember for `spans` (the first ones; 0: none).
    """

    def __init__(self, keep: int = 0) -> None:
        self.spans: list[Span] = []
        self._keep = keep
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Charge the time of the `with` block to `name`."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            end, used = time.perf_counter(), time.process_time() - cpu
            self.wall[name] = self.wall.get(name, 0.0) + end - wall
            self.cpu[name] = self.cpu.get(name, 0.0) + used
            if len(self.spans) < self._keep:
                self.spans.append(Span(LEARNER, name, wall, end, used))

    def left_out(self) -> AbstractContextManager[None]:
        """As of `Timeline`; sums of stages have nothing to leave out."""
        return nullcontext()

    def drain(self) -> dict[str, float]:
        """Return {'time/<stage>': wall s, 'cpu/<stage>': CPU s} since the last call, and start over."""
        out = {f"time/{name}": seconds for name, seconds in self.wall.items()}
        out |= {f"cpu/{name}": seconds for name, seconds in self.cpu.items()}
        self.wall, self.cpu = {}, {}
        return out
