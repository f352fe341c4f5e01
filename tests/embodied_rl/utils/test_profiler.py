"""The profiler: shares of busy time and queues by hand, whose time a span is."""

from __future__ import annotations

import threading
import time

import pytest

from embodied_rl.utils import profiler
from embodied_rl.utils.profiler import LEARNER, Profiler, Span


def test_shares_and_queues_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 s; of two simulator threads one worked 2 s and one 1 s; env groups waited 6 s for the policy in all."""
    now = [100.0]
    monkeypatch.setattr(profiler.time, "perf_counter", lambda: now[0])
    clock = Profiler(2, concurrent=True)
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
    monkeypatch.setattr(profiler.time, "perf_counter", lambda: now[0])
    clock = Profiler(concurrent=True)
    clock.add(Span("act", "act", 100.0, 101.0, 1.0))
    with clock.excluded():
        now[0] = 107.0
    now[0] = 109.0
    assert clock.drain() == {"time/act": 1.0, "cpu/act": 1.0, "busy/act": 0.5}


def test_the_calling_thread_is_the_learner_and_others_keep_their_names() -> None:
    for concurrent in (True, False):
        clock = Profiler(9, concurrent=concurrent)
        with clock.span("update"):
            pass
        assert [(span.worker, span.name) for span in clock.spans] == [(LEARNER, "update")]
        assert ("busy/learner" in clock.drain()) == concurrent
    clock = Profiler(9, concurrent=True)

    def work() -> None:
        with clock.span("act"):
            pass

    thread = threading.Thread(target=work, name="act")
    thread.start()
    thread.join()
    assert [span.worker for span in clock.spans] == ["act"]


@pytest.mark.parametrize("concurrent", [True, False])
def test_cpu_time_is_the_threads_own_only_where_several_are_profiled(concurrent: bool) -> None:
    """A helper burns CPU time while the calling thread sleeps in its span."""

    def burn() -> None:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass

    clock = Profiler(concurrent=concurrent)
    with clock.span("act"):
        helper = threading.Thread(target=burn)
        helper.start()
        helper.join()
    assert (clock.drain()["cpu/act"] < 0.04) == concurrent
