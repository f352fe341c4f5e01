"""A run's timeline for people: a Chrome trace (chrome://tracing, ui.perfetto.dev) and a Gantt chart as PNG."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

from embodied_rl.errors import UserError
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


def draw_gantt(spans: Sequence[Span], title: str) -> bytes:
    """A row a worker, a bar a span, as PNG bytes. Raises UserError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("the Gantt chart needs matplotlib: pip install 'embodied-rl[report]'.") from error
    names = workers_of(spans)
    start = min(span.begin for span in spans)
    figure = Figure(figsize=(9, 1.2 + 0.35 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for stage in dict.fromkeys(span.name for span in spans):
        for row, name in enumerate(names):
            bars = [(s.begin - start, s.end - s.begin) for s in spans if (s.name, s.worker) == (stage, name)]
            axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=_COLOURS.get(stage, "#6e7781"))
        axes.plot([], [], "s", color=_COLOURS.get(stage, "#6e7781"), label=stage)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="seconds")
    axes.set_title(title, fontsize="medium", parse_math=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()
