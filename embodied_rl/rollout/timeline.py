"""Who did what when: spans of work by thread, for sums of busy time, traces and Gantt charts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """`worker` (a thread's name) did `stage` from `begin` to `end` (s, of time.perf_counter), using `cpu` s itself."""

    worker: str
    stage: str
    begin: float
    end: float
    cpu: float


class Timeline:
    """Spans of several threads; like `StageClock`, but any thread may enter a stage. Stages of a thread do not nest.

    keep: how many spans to remember for `spans` (the first ones; 0: none). Sums do not depend on it.
    """

    def __init__(self, keep: int = 0) -> None:
        self.spans: list[Span] = []
        self._keep = keep
        self._lock = threading.Lock()
        self._wall: dict[str, float] = {}
        self._cpu: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge the time of the `with` block to `name` and to the calling thread."""
        begin, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            self.add(Span(threading.current_thread().name, name, begin, time.perf_counter(), time.thread_time() - cpu))

    def add(self, span: Span) -> None:
        """Count a span that was timed elsewhere."""
        with self._lock:
            self._wall[span.stage] = self._wall.get(span.stage, 0.0) + span.end - span.begin
            self._cpu[span.stage] = self._cpu.get(span.stage, 0.0) + span.cpu
            if len(self.spans) < self._keep:
                self.spans.append(span)

    def drain(self) -> dict[str, float]:
        """Return {'time/<stage>': s of wall time, 'cpu/<stage>': s of CPU time} since the last call, all threads added.

        Unlike those of `StageClock` the times overlap, so together they may exceed the time that passed; CPU time is
        that of the thread itself, without helpers that an operator started.
        """
        with self._lock:
            out = {f"time/{name}": seconds for name, seconds in self._wall.items()}
            out |= {f"cpu/{name}": seconds for name, seconds in self._cpu.items()}
            self._wall, self._cpu = {}, {}
        return out
