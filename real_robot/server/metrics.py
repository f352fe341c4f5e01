"""Counts and durations of a server, in the text format that Prometheus reads."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64)
_PREFIX = "embodied_rl_serve_"


class Histogram:
    """Counts of values up to each of `bounds`, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Its samples."""
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.9g}"
        yield f"{name}_count {total}"


class ServerMetrics:
    """What /metrics shows. For the event loop's thread.

    Example:
        >>> metrics = ServerMetrics()
        >>> metrics.requests["ok"] += 1
        >>> 'embodied_rl_serve_requests_total{result="ok"} 1' in metrics.text(clients=0, waiting=0, ready=True)
        True
    """

    def __init__(self) -> None:
        self.requests: defaultdict[str, int] = defaultdict(int, ok=0, error=0, late=0)
        """By result: ok, error (refused, or the policy failed), late (waited too long)."""
        self.refused: defaultdict[str, int] = defaultdict(int, token=0, tries=0, full=0, origin=0)
        """Connections by the reason of their refusal."""
        self.connections = 0
        self.received = 0
        self.sent = 0
        self.batch = Histogram(_ROWS)
        self.infer = Histogram(_SECONDS)
        self.queue = Histogram(_SECONDS)

    def text(self, *, clients: int, waiting: int, ready: bool) -> str:
        """The whole page; clients: connected now. waiting: requests in the queue."""
        lines = [
            *_family("ready", "gauge", "1 while requests are answered", {"": int(ready)}),
            *_family("clients", "gauge", "clients connected now", {"": clients}),
            *_family("queue_length", "gauge", "requests that wait for the policy", {"": waiting}),
            *_family("connections_total", "counter", "connections opened", {"": self.connections}),
            *_family("refused_total", "counter", "connections refused, by reason", _labels("reason", self.refused)),
            *_family("requests_total", "counter", "requests, by result", _labels("result", self.requests)),
            *_family("received_bytes_total", "counter", "bytes of requests", {"": self.received}),
            *_family("sent_bytes_total", "counter", "bytes of answers", {"": self.sent}),
        ]
        for name, text, histogram in (
            ("batch_rows", "requests that one call of the policy decided", self.batch),
            ("infer_seconds", "time of a call of the policy", self.infer),
            ("queue_seconds", "time that a request waited for the policy", self.queue),
        ):
            lines += [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} histogram"]
            lines += histogram.lines(_PREFIX + name)
        return "\n".join(lines) + "\n"


def _labels(label: str, counts: dict[str, int]) -> dict[str, int]:
    return {f'{{{label}="{name}"}}': count for name, count in sorted(counts.items())}


def _family(name: str, kind: str, text: str, samples: dict[str, int]) -> Iterator[str]:
    yield f"# HELP {_PREFIX}{name} {text}"
    yield f"# TYPE {_PREFIX}{name} {kind}"
    for label, value in samples.items():
        yield f"{_PREFIX}{name}{label} {value}"
