"""Time spent in named spans of work by each thread: sums for the metrics, single spans for traces and Gantt charts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LEARNER = "learner"
"""Worker name of the main thread, which calls the scheduler and updates the policy."""


@dataclass(frozen=True, slots=True)
class Span:
    """`worker` (a thread's name) was at `name` from `begin` to `end` (s, of time.perf_counter), using `cpu` s."""

    worker: str
    name: str
    begin: float
    end: float
    cpu: float

    @property
    def role(self) -> str:
        """The worker without its number: 'sim' for 'sim_3'."""
        return self.worker.rstrip("0123456789").rstrip("_ ")


class Profiler:
    """Sums wall and CPU seconds by span name. Spans of one thread do not nest.

    Args:
        max_spans: how many spans to keep in `spans`, the first ones. The sums include all of them.
        concurrent: several threads enter spans at the same time. CPU time is then the thread's own, without helper
            threads that an operator starts, and `drain` also reports how busy the threads were. Otherwise CPU time is
            that of the whole process.

    Example:
        >>> profiler = Profiler()
        >>> with profiler.span("act"):
        ...     policy.act(obs, rng, "sample")
        >>> profiler.drain()
        {'time/act': 0.012, 'cpu/act': 0.023}
    """

    def __init__(self, max_spans: int = 0, *, concurrent: bool = False) -> None:
        self.spans: list[Span] = []
        self._max_spans = max_spans
        self._concurrent = concurrent
        self._cpu_clock = time.thread_time if concurrent else time.process_time
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
        begin, cpu = time.perf_counter(), self._cpu_clock()
        try:
            yield
        finally:
            end, used = time.perf_counter(), self._cpu_clock() - cpu
            thread = threading.current_thread()
            self.add(Span(LEARNER if thread is threading.main_thread() else thread.name, name, begin, end, used))

    @contextmanager
    def excluded(self) -> Iterator[None]:
        """Count the time of the `with` block as neither busy nor idle; nobody may enter a span in it."""
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
            if len(self.spans) < self._max_spans:
                self.spans.append(span)

    def queued(self, name: str, seconds: float) -> None:
        """Something waited that long for `name` to take it."""
        with self._lock:
            self._queued[name] = self._queued.get(name, 0.0) + seconds

    def drain(self) -> dict[str, float]:
        """Return what happened since the last call, and start over.

        Returns:
            'time/<name>', 'cpu/<name>': seconds of wall and CPU time, all threads added.
            'busy/<role>', if concurrent: share of the time that the threads of a role (sim, act, learner) worked; the
            learner's own threads count as one.
            'queue/<name>': how many env groups waited for it on average.
        """
        now = time.perf_counter()
        with self._lock:
            elapsed, self._since = max(now - self._since, 1e-9), now
            out = {f"time/{name}": seconds for name, seconds in self._wall.items()}
            out |= {f"cpu/{name}": seconds for name, seconds in self._cpu.items()}
            if self._concurrent:
                out |= {
                    f"busy/{role}": self._busy.get(role, 0.0) / (elapsed * len(workers))
                    for role, workers in self._workers.items()
                }
            out |= {f"queue/{name}": seconds / elapsed for name, seconds in self._queued.items()}
            self._wall, self._cpu, self._busy, self._queued = {}, {}, {}, {}
        return out
