"""Traces: the Chrome trace's events, the chart."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from embodied_rl.errors import UserError
from embodied_rl.telemetry.progress import summary
from embodied_rl.telemetry.trace import draw_timeline, first_iterations, workers_of, write_trace
from embodied_rl.utils.profiler import LEARNER, Span

SPANS = [
    Span("sim_10", "simulate", 10.0, 11.0, 0.5),
    Span("sim_2", "render", 10.5, 10.75, 0.25),
    Span("act", "act", 11.0, 12.0, 1.0),
    Span(LEARNER, "update", 12.0, 14.0, 2.0),
    Span("act", "act", 14.5, 15.0, 0.5),
    Span(LEARNER, "update", 15.0, 16.0, 1.0),
]


def test_a_chrome_trace_has_an_event_a_span_on_its_worker_s_line(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", SPANS)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert [names[index] for index in sorted(names)] == [LEARNER, "act", "sim_2", "sim_10"]
    work = [event for event in events if event["ph"] == "X"]
    assert [(names[e["tid"]], e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in work] == [
        (span.worker, span.name, pytest.approx(span.begin - 10), pytest.approx(span.end - span.begin)) for span in SPANS
    ]
    with pytest.raises(UserError, match="cannot write"):
        write_trace(tmp_path / "no" / "trace.json", SPANS)


def test_the_chart_shows_the_first_iterations() -> None:
    assert first_iterations(SPANS, 1) == SPANS[:4]
    assert first_iterations(SPANS, 2) == SPANS
    assert first_iterations(SPANS, 3) == SPANS
    assert workers_of(SPANS)[0] == LEARNER


def test_a_timeline_has_a_row_a_worker_and_a_colour_a_stage() -> None:
    root = ElementTree.fromstring(draw_timeline(SPANS, "<two> iterations"))
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [name for name in texts if name in workers_of(SPANS)] == [*workers_of(SPANS), "act"]  # the stage's key
    paths = {node[0].text: str(node.get("d")) for node in root.iter("{http://www.w3.org/2000/svg}path")}
    assert {stage: path.count("M") for stage, path in paths.items()} == {
        "simulate": 1,
        "render": 1,
        "act": 2,
        "update": 2,
    }


def test_many_short_spans_are_a_small_picture() -> None:
    spans = [Span("act", "act", 0.01 * n, 0.01 * n + 0.009, 0.009) for n in range(20_000)]
    assert len(draw_timeline(spans, "long")) < 50_000


def test_the_progress_line_says_who_was_busy() -> None:
    assert summary({"busy/sim": 0.954, "busy/act": 0.4, "train/loss": 0.5}) == "loss +0.5000  busy: sim 95% act 40%"
    assert "busy" not in summary({"train/loss": 0.5})
