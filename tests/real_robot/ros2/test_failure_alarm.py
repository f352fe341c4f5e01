"""The failure detector of an arm, in lockstep: when it asks for a person, when the arm holds, what ends an alarm."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.evaluation.detector import FIRST, Kind, Sight
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.record.events import AlarmRaised
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.episodes import EpisodeBook
from embodied_rl.real_robot.ros2.events import ObservationWatched, StateChanged
from embodied_rl.real_robot.ros2.failure_alarm import PERSON_S, FailureAlarm, watched
from embodied_rl.real_robot.ros2.messages import MessageError
from tests.real_robot.ros2.bench import Bench

STEPS = 4
"""Control steps of a decision."""
TICKS = 10
"""Of a decision: each has 20 ms, a control step 50."""
LIMIT = 5.0
FIRST_ALARM = 6
"""Decision at which a clock with this limit raises its alarm."""
STILL, NOTHING = np.zeros(6), Sight(0.0, 0.0)


class Watched:
    """An arm that runs, its episodes numbered, and a server whose detector says something of each observation."""

    def __init__(self, kind: Kind = "clock", *, acts: bool = True) -> None:
        self.bench = Bench()
        self.kind: Kind = kind
        self.alarm = FailureAlarm(self.bench.loop, acts=acts)
        EpisodeBook(self.bench.loop, SimpleNamespace(new_episode=lambda seed: None))  # type: ignore[arg-type]
        self.bench.run()

    @property
    def state(self) -> ArmState:
        return self.bench.loop.state

    @property
    def raised(self) -> list[AlarmRaised]:
        return [event for event in self.bench.events if isinstance(event, AlarmRaised)]

    @property
    def reason(self) -> str:
        """Why the last transition happened."""
        return [event.transition for event in self.bench.events if isinstance(event, StateChanged)][-1].reason

    def answer(self, sight: Sight = NOTHING, *, acts: bool = True, ago_ns: int = 0) -> None:
        """One answer about what was seen `ago_ns` before."""
        if acts:
            self.bench.plan(0, 0.1, 0, 0, 0, 0, -1)
        now = self.bench.now
        self.bench.loop.events.emit(ObservationWatched(now, now - ago_ns, self.kind, STEPS, sight, LIMIT))

    def decide(self, count: int, sight: Sight = NOTHING) -> None:
        """So many decisions, each acted for its control steps."""
        for _ in range(count):
            self.answer(sight)
            self.bench.step(TICKS)

    def wait(self, seconds: float) -> None:
        """The policy goes on for so long, and nobody watches it."""
        for _ in range(round(seconds / 0.2)):
            if self.state is ArmState.RUNNING:
                self.bench.plan(0, 0.1, 0, 0, 0, 0, -1)
            self.bench.step(TICKS)

    def human(self, *, engaged: bool) -> None:
        self.bench.loop.human(STILL, 0.0, self.bench.now, engaged=engaged)
        self.bench.step()

    def hand_back(self) -> None:
        """A person lets go, and the policy goes on."""
        self.human(engaged=False)
        assert self.bench.loop.release(self.bench.now).accepted
        self.bench.step(5)
        assert self.bench.fire(Event.RESUME)


def test_an_alarm_asks_for_a_person_and_the_arm_goes_on_meanwhile() -> None:
    arm = Watched()
    arm.decide(FIRST_ALARM - 1)
    assert (arm.raised, arm.alarm.asks, arm.alarm.alarms) == ([], "", [])
    arm.decide(1)
    (alarm,) = arm.raised
    assert (alarm.episode, alarm.decision, alarm.kind, alarm.index, alarm.limit) == (1, FIRST_ALARM, "clock", 6.0, 5.0)
    words = "detector: decision 6 looks like a failure (clock 6.0, at most 5.0): take the arm over, or it holds"
    assert (arm.alarm.asks, arm.alarm.alarms) == (words, [FIRST_ALARM])
    assert arm.state is ArmState.RUNNING
    arm.decide(5)
    assert len(arm.raised) == 1, "once an episode"


def test_the_arm_holds_where_nobody_comes_and_names_the_detector() -> None:
    arm = Watched()
    arm.decide(FIRST_ALARM)
    arm.wait(PERSON_S - 0.4)
    assert arm.state is ArmState.RUNNING
    arm.wait(0.6)
    assert arm.state is ArmState.HOLDING
    assert arm.reason.startswith("detector: decision 6 looks like a failure (clock 6.0, at most 5.0), and nobody took")
    assert "take the arm over, resume it or disarm it" in arm.alarm.asks
    assert arm.bench.outputs[-1].tick.faults == (), "a person may resume it"
    assert arm.bench.fire(Event.RESUME)
    assert arm.alarm.asks == ""
    arm.decide(5)
    arm.wait(2 * PERSON_S)
    assert (arm.state, len(arm.raised)) == (ArmState.RUNNING, 1), "a person has looked at it, and wants it to go on"


def test_another_hold_that_is_resumed_does_not_end_the_alarm() -> None:
    """Who resumed it looked after a camera, or was a script."""
    arm = Watched()
    arm.decide(FIRST_ALARM)
    arm.wait(1.0)
    assert arm.bench.fire(Event.HOLD)
    arm.bench.step(60)
    assert arm.bench.fire(Event.RESUME)
    assert "take the arm over" in arm.alarm.asks
    arm.wait(PERSON_S - 0.4)
    assert arm.state is ArmState.RUNNING, "a person has the whole time again"
    arm.wait(0.8)
    assert arm.state is ArmState.HOLDING
    assert "detector: " in arm.reason


def test_what_is_not_sent_to_the_arm_is_not_judged() -> None:
    arm = Watched(acts=False)
    arm.decide(3 * FIRST_ALARM)
    assert (arm.raised, arm.alarm.asks, arm.state) == ([], "", ArmState.RUNNING)


def test_a_person_who_takes_over_ends_the_alarm_and_the_policy_is_watched_anew_after_that() -> None:
    arm = Watched()
    arm.decide(FIRST_ALARM)
    arm.wait(PERSON_S - 0.4)
    arm.human(engaged=True)
    assert (arm.state, arm.alarm.asks) == (ArmState.HUMAN, "")
    for _ in range(round(2 * PERSON_S / 0.1)):
        arm.human(engaged=True)
        arm.bench.step(4)
    assert arm.state is ArmState.HUMAN, "the hold is not the person's"
    arm.hand_back()
    arm.decide(FIRST_ALARM - 1)
    assert len(arm.raised) == 1, "what came before the person is not held against it"
    arm.decide(1)
    assert arm.alarm.alarms == [FIRST_ALARM, 2 * FIRST_ALARM], "counted on in the episode"
    arm.wait(PERSON_S + 0.2)
    assert arm.state is ArmState.HOLDING


def test_a_person_takes_an_arm_over_that_holds() -> None:
    arm = Watched()
    arm.decide(FIRST_ALARM)
    arm.wait(PERSON_S + 0.2)
    arm.human(engaged=True)
    assert (arm.state, arm.alarm.asks) == (ArmState.HUMAN, "")


def test_the_next_episode_begins_without_the_last_ones_history() -> None:
    arm = Watched()
    arm.decide(FIRST_ALARM - 1)
    assert arm.bench.fire(Event.HOLD)
    arm.bench.step(30)
    assert arm.bench.fire(Event.DISARM)
    assert arm.bench.fire(Event.ARM)
    assert arm.bench.fire(Event.START)
    arm.bench.step()
    arm.decide(FIRST_ALARM - 1)
    assert arm.raised == []
    arm.decide(1)
    assert [(alarm.episode, alarm.decision) for alarm in arm.raised] == [(2, FIRST_ALARM)]
    assert arm.bench.fire(Event.HOLD)
    arm.bench.step(30)
    assert arm.bench.fire(Event.DISARM)
    assert (arm.alarm.asks, arm.alarm.alarms) == ("", [FIRST_ALARM]), "nobody is asked, and the report can be made"
    assert arm.bench.fire(Event.ARM)
    assert arm.bench.fire(Event.START)
    assert arm.alarm.alarms == []
    arm.wait(2 * PERSON_S)
    assert arm.state is ArmState.RUNNING


def test_decisions_are_counted_by_control_steps_that_were_acted() -> None:
    arm = Watched()
    for _ in range(2 * (FIRST_ALARM - 1)):  # asked twice a decision
        arm.answer()
        arm.bench.step(TICKS // 2)
    assert arm.raised == []
    assert arm.bench.fire(Event.HOLD)
    arm.bench.step(30)
    for _ in range(20):  # asked on while it holds
        arm.answer(acts=False)
        arm.bench.step(TICKS)
    assert arm.bench.fire(Event.RESUME)
    arm.bench.step()
    arm.answer()
    assert [alarm.decision for alarm in arm.raised] == [FIRST_ALARM]


def test_answers_without_actions_are_no_decisions() -> None:
    arm = Watched()
    for _ in range(2 * FIRST_ALARM):
        arm.answer(acts=False)
        arm.bench.step(TICKS)
    assert arm.raised == []


def test_what_was_seen_before_the_episode_does_not_count() -> None:
    arm = Watched("nearest")
    for _ in range(2 * FIRST_ALARM):
        arm.answer(Sight(99.0, 0.0), ago_ns=60_000_000_000)
        arm.bench.step(TICKS)
    assert arm.raised == []


def test_the_index_is_the_detectors() -> None:
    arm = Watched("nearest")
    arm.decide(FIRST, Sight(99.0, 0.0))
    assert arm.raised == [], "the first decisions raise none"
    arm.decide(1, Sight(99.0, 0.0))
    assert [alarm.decision for alarm in arm.raised] == [FIRST + 1]
    near = Watched("nearest")
    near.decide(20, Sight(4.9, 0.0))
    assert near.raised == []


def test_a_twin_that_resumes_by_itself_waits_for_a_person() -> None:
    arm = Watched()
    bridge: Any = Bridge.__new__(Bridge)
    bridge.context = SimpleNamespace(options=SimpleNamespace(resume_s=0.3), loop=arm.bench.loop, alarm=arm.alarm)
    bridge._operator, bridge._healthy_ns = SimpleNamespace(wants_to_run=True), 0

    def resumes() -> bool:
        for _ in range(50):
            bridge._resume_alone(arm.bench.step(), arm.bench.now)
        return arm.state is ArmState.RUNNING

    assert arm.bench.fire(Event.HOLD)
    assert resumes(), "after any other hold"
    arm.decide(FIRST_ALARM)
    arm.wait(PERSON_S + 0.2)
    assert not resumes()


def test_what_a_server_says_is_checked() -> None:
    right = {"kind": "clock", "chunk_len": 4, "distance": 0.5, "to_go": 3, "limit": 7.0}
    assert watched({"detector": right}, 2, 1) == ObservationWatched(2, 1, "clock", 4, Sight(0.5, 3.0), 7.0)
    for change, words in (
        ({"kind": "guess"}, "guess"),
        ({"chunk_len": 0}, "0 control steps"),
        ({"distance": float("nan")}, "not finite"),
        ({"limit": None}, "limit is NoneType"),
    ):
        with pytest.raises(MessageError, match=words):
            watched({"detector": right | change}, 2, 1)
    with pytest.raises(MessageError, match="what the server's detector says is NoneType"):
        watched({"actions": 1}, 2, 1)
