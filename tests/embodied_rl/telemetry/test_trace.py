"""Timelines: shares of busy time and queues by hand, the Chrome trace's events, the chart."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from embodied_rl.errors import UserError
from embodied_rl.telemetry.progress import summary
from embodied_rl.telemetry.trace import draw_gantt, first_iterations, workers_of, write_trace
from embodied_rl.utils import timeline
from embodied_rl.utils.timeline import LEARNER, Span, Timeline
from embodied_rl.utils.timers import StageClock

SPANS = [
    Span("sim_10", "simulate", 10.0, 11.0, 0.5),
    Span("sim_2", "render", 10.5, 10.75, 0.25),
    Span("act", "act", 11.0, 12.0, 1.0),
    Span(LEARNER, "update", 12.0, 14.0, 2.0),
    Span("act", "act", 14.5, 15.0, 0.5),
    Span(LEARNER, "update", 15.0, 16.0, 1.0),
]


def test_shares_and_queues_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 s; of two simulator threads one worked 2 s and one 1 s; lanes waited 6 s for the policy in all."""
    now = [100.0]
    monkeypatch.setattr(timeline.time, "perf_counter", lambda: now[0])
    clock = Timeline(keep=2)
    for worker, stage, seconds in (("sim_0", "simulate", 2.0), ("sim_1", "render", 1.0), ("act", "act", 1.0)):
        clock.add(Span(worker, stage, 0.0, seconds, 0.5))
    clock.queued("act", 5.0)
    clock.queued("act", 1.0)
    now[0] = 104.0
    found = clock.drain()
    assert (found["busy/sim"], found["busy/act"], found["queue/act"]) == pytest.approx((3 / 8, 1 / 4, 1.5))
    assert (found["time/simulate"], found["cpu/simulate"]) == (2.0, 0.5)
    assert len(clock.spans) == 2
    now[0] = 108.0
    idle = clock.drain()
    assert idle == {"busy/sim": 0.0, "busy/act": 0.0}  # known threads that did nothing are idle, not forgotten


def test_what_is_left_out_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation of 7 s within 2 s of training, of which the policy worked 1 s."""
    now = [100.0]
    monkeypatch.setattr(timeline.time, "perf_counter", lambda: now[0])
    clock = Timeline()
    clock.add(Span("act", "act", 100.0, 101.0, 1.0))
    with clock.left_out():
        now[0] = 107.0
    now[0] = 109.0
    assert clock.drain() == {"time/act": 1.0, "cpu/act": 1.0, "busy/act": 0.5}


def test_the_calling_thread_is_the_learner_and_others_keep_their_names() -> None:
    for clock in (Timeline(keep=9), StageClock(keep=9)):
        with clock.span("update"):
            pass
        assert [(span.worker, span.name) for span in clock.spans] == [(LEARNER, "update")]
    clock = Timeline(keep=9)

    def work() -> None:
        with clock.span("act"):
            pass

    thread = threading.Thread(target=work, name="act")
    thread.start()
    thread.join()
    assert [span.worker for span in clock.spans] == ["act"]


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
    pytest.importorskip("matplotlib")
    assert draw_gantt(SPANS, "two iterations").startswith(b"\x89PNG")


def test_the_progress_line_says_who_was_busy() -> None:
    assert summary({"busy/sim": 0.954, "busy/act": 0.4, "train/loss": 0.5}) == "loss +0.5000  busy: sim 95% act 40%"
    assert "busy" not in summary({"train/loss": 0.5})
