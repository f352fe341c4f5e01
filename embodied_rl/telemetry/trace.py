"""A run's timeline for people: a Chrome trace (chrome://tracing, ui.perfetto.dev) and a Gantt chart as SVG."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.telemetry.pages import render
from embodied_rl.telemetry.plots import ticks
from embodied_rl.utils.profiler import LEARNER, Span

_COLOURS = {
    "act": "#1f6feb",
    "simulate": "#2da44e",
    "render": "#8ddb8c",
    "reset": "#bf8700",
    "update": "#cf222e",
    "learn": "#fa8072",
    "gather": "#8250df",
    "evaluate": "#d4a72c",
}


def workers_of(spans: Sequence[Span]) -> list[str]:
    """Who appears, the learner first, then by name and number."""
    names = {span.worker for span in spans}
    return sorted(names, key=lambda name: (name != LEARNER, name.rstrip("0123456789"), len(name), name))


def write_trace(path: Path, spans: Sequence[Span]) -> None:
    """Write the spans as complete events of Chrome's trace format, times in microseconds from the first."""
    start = min((span.begin for span in spans), default=0.0)
    thread = {name: index for index, name in enumerate(workers_of(spans))}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": index, "args": {"name": name}}
        for name, index in thread.items()
    ]
    events += [
        {
            "ph": "X",
            "name": span.name,
            "pid": 1,
            "tid": thread[span.worker],
            "ts": 1e6 * (span.begin - start),
            "dur": 1e6 * (span.end - span.begin),
            "args": {"cpu_ms": 1e3 * span.cpu},
        }
        for span in spans
    ]
    try:
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}.") from error


def first_iterations(spans: Sequence[Span], count: int = 2) -> list[Span]:
    """The spans that began before update `count` ended; all if there were fewer."""
    ends = sorted(span.end for span in spans if span.name == "update")
    until = ends[count - 1] if len(ends) >= count else float("inf")
    return [span for span in spans if span.begin < until]


def draw_timeline(spans: Sequence[Span], title: str) -> str:
    """A row a worker, a bar a span, as SVG that stands alone or in a page."""
    names, start = workers_of(spans), min(span.begin for span in spans)
    seconds = max(span.end for span in spans) - start
    scale = (_WIDTH - _LEFT) / (seconds or 1.0)
    stages = list(dict.fromkeys(span.name for span in spans))
    bars = []
    for stage in stages:
        path = ""
        for row, name in enumerate(names):
            times = [(s.begin - start, s.end - start) for s in spans if (s.name, s.worker) == (stage, name)]
            for begin, end in _merged(times, _LEAST / scale):
                width = max(_LEAST, (end - begin) * scale)
                path += f"M{_LEFT + begin * scale:.1f} {row * _ROW + 3}h{width:.1f}v{_ROW - 6}h-{width:.1f}z"
        bars.append((stage, _COLOURS.get(stage, "#6e7781"), path))
    marks = [(round(_LEFT + tick * scale, 1), f"{tick:g}") for tick in ticks(0.0, seconds) if tick <= seconds]
    return render("timeline.svg", title=title, width=_WIDTH, left=_LEFT, row=_ROW, names=names, bars=bars, ticks=marks)


_WIDTH, _LEFT, _ROW = 960, 90, 24
"""Pixels: of the drawing, of its names, of a worker's row."""
_LEAST = 0.5
"""Pixels of a bar, at least; bars that lie closer together become one, so that 20,000 spans stay a small file."""


def _merged(times: Sequence[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    """Intervals by their begin; those less than `gap` apart are one."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(times):
        if merged and begin - merged[-1][1] < gap:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged
