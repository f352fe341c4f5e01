"""What the status and /diagnostics say of an arm that says it runs and stands still, without ROS."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.real_robot.core.states import Event
from embodied_rl.real_robot.record.events import AlarmRaised
from embodied_rl.real_robot.ros2.inference_client import InferenceReport
from embodied_rl.real_robot.ros2.report import Reporter
from tests.real_robot.ros2.bench import Bench

RIGHT = {"file": "run.mcap", "dropped": 0, "problem": ""}


def reporter(bench: Bench, recording: dict[str, Any] | None = None) -> Any:
    """One whose topics nobody hears."""
    made: Any = Reporter.__new__(Reporter)
    inference = SimpleNamespace(report=InferenceReport(), metadata={"tasks": ["open the drawer"]})
    observations = SimpleNamespace(instruction="open the drawer")
    alarm = SimpleNamespace(asks="", alarms=[])
    made._context = SimpleNamespace(loop=bench.loop, inference=inference, observations=observations, alarm=alarm)
    made._inputs = SimpleNamespace(instruction_problem="", twist_problem="")
    made._recording = None if recording is None else SimpleNamespace(status=lambda: recording)
    made._text, made._states = SimpleNamespace, SimpleNamespace(publish=lambda message: None)
    made._acts, made._taken = deque[bool](maxlen=40), deque[bool](maxlen=100)
    made._ticks, made._steps, made._outcomes, made._reasons = deque[int](), deque[int](), _Count(), _Count()
    bench.loop.events.subscribe(made._on_event)
    return made


class _Count(dict[str, int]):
    def __missing__(self, key: str) -> int:
        return 0

    def update(self, more: Any) -> None:  # type: ignore[override]
        """Nothing is counted here."""


def run(bench: Bench, made: Any, ticks: int) -> list[str]:
    for _ in range(ticks):
        made.tick(bench.step(), bench.now)
    return made._warnings(bench.now)


def test_an_arm_that_runs_without_actions_is_warned_of() -> None:
    bench = Bench().run()
    made = reporter(bench)
    assert run(bench, made, 100) == ["0% of the last 40 control steps had an action"]
    assert bench.fire(Event.HOLD)
    assert made._warnings(bench.now) == [], "it says that it holds"
    assert bench.fire(Event.RESUME)
    assert run(bench, made, 20) == [], "a moment after it was resumed"
    bench.plan(0, 0.1, 0, 0, 0, 0, -1)
    assert made._warnings(bench.now) == []


def test_commands_that_cannot_be_done_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench().run()
    made = reporter(bench)
    monkeypatch.setattr(bench.loop._target, "command", lambda now_ns, source: None)  # no joints bring the tool there
    said = run(bench, made, 110)
    assert "0% of the last 100 ticks could do what the policy asked for: see the reasons" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"dropped": 3}, ["the recording lacks 3 events"]),
        ({"problem": "disk full"}, ["the recording is not complete: disk full"]),
    ],
)
def test_a_recording_with_gaps_is_warned_of(change: dict[str, Any], words: list[str]) -> None:
    bench = Bench()
    assert reporter(bench, RIGHT | change)._warnings(bench.now) == words


def test_a_person_is_asked_for_in_the_status_and_the_log() -> None:
    bench, lines = Bench(), list[str]()
    made = reporter(bench)
    assert made._detector() is None
    made._log = SimpleNamespace(warning=lines.append)
    bench.loop.events.emit(AlarmRaised(bench.now, 3, 12, "clock", 12.0, 11.0))
    words = "decision 12 of episode 3 raised an alarm of the failure detector (clock 12.0, at most 11.0)"
    assert lines == [words]
    made._context.alarm.asks, made._context.alarm.alarms = "detector: come", [12]
    made._context.inference.metadata["detector"] = "clock 1a2b"
    assert made._warnings(bench.now) == ["detector: come"]
    assert made._detector() == {"name": "clock 1a2b", "alarms": [12]}


def test_answers_and_instructions_are_warned_of() -> None:
    bench = Bench()
    made = reporter(bench)
    context = made._context
    context.observations.instruction = "open the door"
    made._inputs.instruction_problem = "not taken"
    context.inference.report.answers, context.inference.report.last_error = 1, "actions (3, 7) instead of (8, 7)"
    policy, taken, unknown = made._warnings(bench.now)
    assert policy.startswith("policy: ")
    assert policy.endswith("actions (3, 7) instead of (8, 7)")
    assert taken == "not taken"
    assert unknown.startswith("'open the door' is none of the 1 tasks")
