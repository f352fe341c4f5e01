"""Watches the bridge's episodes with the server's failure detector: asks for a person, and holds where nobody comes.

The server compares each observation with demonstrations. The history of an episode is kept here, since a server has
many clients. No ROS, no clock: all is heard as events.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodied_rl.evaluation.detector import KINDS, Sight, index_of, raises_alarm
from embodied_rl.real_robot.core.states import ArmState, Event, Transition
from embodied_rl.real_robot.record.events import AlarmRaised
from embodied_rl.real_robot.ros2.events import (
    ActionTaken,
    CommandJudged,
    EpisodeMarked,
    ObservationWatched,
    StateChanged,
)
from embodied_rl.real_robot.ros2.events import Event as BridgeEvent
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.messages import MessageError, check

PERSON_S = 3.0
"""How long a person is waited for while the policy goes on. A hand at the switch needs less, and from a hold the arm
can still be taken over: to wait longer only lets an episode go on that is going to fail."""
FAULT = "detector"
"""The kind of the fault that makes the arm hold."""
_SAID = {"kind": str, "chunk_len": int, "distance": float, "to_go": float, "limit": float}


def watched(answer: Mapping[str, Any], time_ns: int, observed_ns: int) -> ObservationWatched:
    """What the detector of a server says in an answer.

    Raises:
        MessageError: Nothing, or something else.
    """
    said = answer.get("detector")
    check(said, _SAID, "what the server's detector says")
    assert isinstance(said, dict)
    if said["kind"] not in KINDS or said["chunk_len"] < 1:
        raise MessageError(f"the server's detector is {said['kind']:.40} of {said['chunk_len']} control steps")
    numbers = [float(said[name]) for name in ("distance", "to_go", "limit")]
    if not all(map(math.isfinite, numbers)):
        raise MessageError("what the server's detector says is not finite")
    sight = Sight(*numbers[:2])
    return ObservationWatched(time_ns, observed_ns, said["kind"], said["chunk_len"], sight, numbers[2])


class FailureAlarm:
    """Judges the policy's decisions in each episode, as training does: one for so many control steps that were acted.

    An alarm is raised once, until a person has taken the arm over: what the policy does after that is watched anew. The
    arm holds where nobody takes it over within `PERSON_S`. A person who resumes it wants it to go on.

    Args:
        loop: Whose events are heard, and which holds.
        acts: Whether the arm does what the policy decides: else nothing is judged.

    Example:
        >>> alarm = FailureAlarm(loop)
        >>> alarm.asks
        'detector: decision 12 looks like a failure (steps_to_go 31.2, at most 27.0): take the arm over, or it holds'
    """

    def __init__(self, loop: ControlLoop, *, acts: bool = True) -> None:
        self._loop, self._lock, self._acts = loop, threading.Lock(), acts
        self._episode, self._alarms = 0, list[int]()
        self._begin(0)
        self._before = 0
        """Decisions of the episode before a person had the arm last."""
        loop.events.subscribe(self._on_event)

    @property
    def alarms(self) -> list[int]:
        """Decisions of the running or the last episode at which an alarm was raised, counted from 1."""
        with self._lock:
            return list(self._alarms)

    @property
    def asks(self) -> str:
        """What a person is asked to do; empty where nobody is asked."""
        with self._lock:
            if self._asked is None:
                return ""
            running = self._loop.state is ArmState.RUNNING
            wish = "take the arm over, or it holds" if running else "take the arm over, resume it or disarm it"
            return f"{FAULT}: {_words(self._asked)}: {wish}"

    def _on_event(self, event: BridgeEvent) -> None:
        raised: AlarmRaised | None = None
        with self._lock:
            if isinstance(event, EpisodeMarked) and event.began:
                self._episode, self._alarms, self._before = event.number, [], 0
                self._begin(event.time_ns)
            elif isinstance(event, StateChanged) and event.transition.accepted:
                self._changed(event.transition)
            elif isinstance(event, ActionTaken):
                self._steps += event.action is not None
            elif isinstance(event, ObservationWatched):
                raised = self._judge(event)
            elif isinstance(event, CommandJudged):
                self._hold_if_nobody_came(event.time_ns)
        if raised is not None:
            self._loop.events.emit(raised)

    def _begin(self, time_ns: int) -> None:
        """The policy acts from now on, in a new episode or after a person."""
        self._sights, self._steps, self._since_ns = list[Sight](), 0, time_ns
        self._raised = self._held = False
        self._asked: AlarmRaised | None = None
        """The alarm for which a person is waited for."""

    def _changed(self, change: Transition) -> None:
        self._loop.note(FAULT, "")  # the fault makes the arm hold once; from there on a person decides
        if change.event is Event.TAKEOVER:
            self._before += len(self._sights)
            self._begin(change.time_ns)
        elif change.event is Event.RESUME and self._asked is not None and not self._held:
            self._asked = replace(self._asked, time_ns=change.time_ns)  # another hold is over: this one is still due
        elif change.after is not ArmState.HOLDING:
            self._asked = None

    def _judge(self, seen: ObservationWatched) -> AlarmRaised | None:
        """Add a decision where its control steps have been acted; the alarm that it raises."""
        due = self._steps >= seen.chunk_len * len(self._sights)
        if not self._acts or not due or self._loop.state is not ArmState.RUNNING or seen.observed_ns < self._since_ns:
            return None
        self._sights.append(seen.sight)
        if self._raised or not raises_alarm(seen.kind, self._sights, seen.limit):
            return None
        decision, index = self._before + len(self._sights), index_of(seen.kind, self._sights)
        self._asked = AlarmRaised(seen.time_ns, self._episode, decision, seen.kind, index, seen.limit)
        self._raised = True
        self._alarms.append(decision)
        return self._asked

    def _hold_if_nobody_came(self, now_ns: int) -> None:
        asked = self._asked
        if asked is None or self._held or self._loop.state is not ArmState.RUNNING:
            return
        if now_ns - asked.time_ns < PERSON_S * 1e9:
            return
        self._held = True
        # A fault, and no event: the next tick holds an arm that still runs, never one that a person has by then.
        self._loop.note(FAULT, f"{_words(asked)}, and nobody took over in {PERSON_S:g} s")


def _words(alarm: AlarmRaised) -> str:
    return f"decision {alarm.decision} looks like a failure ({alarm.kind} {alarm.index:.1f}, at most {alarm.limit:.1f})"
