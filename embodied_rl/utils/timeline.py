"""Who did what when: spans of work by thread, for shares of busy time, queues, traces and Gantt charts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LEARNER = "learner"
"""The thread that calls the scheduler; Python calls it MainThread."""


@dataclass(frozen=True, slots=True)
class Span:
    """`worker` (a thread's name) did `stage` from `begin` to `end` (s, of time.perf_counter), using `cpu` s itself."""

    worker: str
    name: str
    begin: float
    end: float
    cpu: float

    @property
    def role(self) -> str:
        """The worker without its number: 'sim' for 'sim_3'."""
        return self.worker.rstrip("0123456789").rstrip("_ ")


class Timeline:
    """Spans of several threads; like `StageClock`, but any thread may enter a stage. Stages of a thread do not nest.

    keep: how many spans to remember for `spans` (the first ones; 0: none). Sums do not depend on it.
    """

    def __init__(self, keep: int = 0) -> None:
        self.spans: list[Span] = []
        self._keep = keep
        self._lock = threading.Lock()
        self._since = time.perf_counter()
        self._wall: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._busy: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        self._workers: dict[str, set[str]] = {}

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Charge the time of the `with` block to `name` and to the calling thread."""
        begin, cpu = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            thread = threading.current_thread()
            worker = LEARNER if thread is threading.main_thread() else thread.name
            self.add(Span(worker, name, begin, time.perf_counter(), time.thread_time() - cpu))

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """The time of the `with` block, in which nobody enters a stage, counts as neither busy nor idle."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._since += time.perf_counter() - begin

    def add(self, span: Span) -> None:
        """Count a span that was timed elsewhere."""
        seconds = span.end - span.begin
        with self._lock:
            self._wall[span.name] = self._wall.get(span.name, 0.0) + seconds
            self._cpu[span.name] = self._cpu.get(span.name, 0.0) + span.cpu
            self._busy[span.role] = self._busy.get(span.role, 0.0) + seconds
            self._workers.setdefault(span.role, set()).add(span.worker)
            if len(self.spans) < self._keep:
                self.spans.append(span)

    def queued(self, stage: str, seconds: float) -> None:
        """Something waited that long for `stage` to take it."""
        with self._lock:
            self._queued[stage] = self._queued.get(stage, 0.0) + seconds

    def drain(self) -> dict[str, float]:
        """What happened since the last call.

        'time/<stage>', 'cpu/<stage>': s of wall time and of CPU time, all threads added. Unlike those of `StageClock`
        the times overlap, so together they may exceed the time that passed; CPU time is that of the thread itself,
        without helpers that an operator started. 'busy/<role>': share of the time that the threads of a role (sim, act,
        learner, whose own threads count as one) worked; the rest they were idle. 'queue/<stage>': how many lanes waited
        for it on average.
        """
        now = time.perf_counter()
        with self._lock:
            elapsed, self._since = max(now - self._since, 1e-9), now
            out = {f"time/{name}": seconds for name, seconds in self._wall.items()}
            out |= {f"cpu/{name}": seconds for name, seconds in self._cpu.items()}
            out |= {
                f"busy/{role}": self._busy.get(role, 0.0) / (elapsed * len(workers))
                for role, workers in self._workers.items()
            }
            out |= {f"queue/{name}": seconds / elapsed for name, seconds in self._queued.items()}
            self._wall, self._cpu, self._busy, self._queued = {}, {}, {}, {}
        return out
