"""One control tick of an arm: watchdog, state machine, mux and gate in their one right order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.buttons import Buttons
from embodied_rl.real_robot.core.gate import NANOSECONDS, Command, GateDecision, GateOutcome, Reason, Setpoint
from embodied_rl.real_robot.core.mux import Selection, TakeoverMux
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.core.states import TRANSITIONS, ArmState, Event, StateMachine, Transition
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.core.watchdog import Fault, Watchdog

STOP, COMMANDS = "emergency_stop", "commands"
"""Faults of the emergency stop's buttons, and of somebody else who commands the arm."""
_STOP_A_HUMAN = ("joint_states", "jitter", "tracking", STOP, COMMANDS)
"""Faults under which not even a human moves the arm; a human needs neither cameras nor the policy."""

_UNHEARD = "joint_states"
_LOST = "clear its way, then disarm and arm it"
_MOMENT_NS = 500_000
_SPEED_NS, _REST, _OFF = 20_000_000, 0.05, 0.01
"""Joint states so far apart say how fast the arm moves, ns; slower than so many rad/s it rests; so many rad off."""
_REPEATED_NS = 500_000_000
"""How long the stop of an arm that did not follow is sent: longer than it takes, so that no controller misses it."""


def first_tick(now_ns: int, period_ns: int) -> int:
    """When the next tick is due: the next multiple of a tick's length, and a moment.

    Control steps begin at multiples of theirs. Ticks on the same grid are late by what a computer needs, never early:
    where a step is a whole number of ticks, each begins with its own, and all are equally long.
    """
    return (now_ns // period_ns + 1) * period_ns + _MOMENT_NS


def repeated(names: Sequence[str], known: Sequence[str]) -> str:
    """Which of the known joints occur twice among the names of a message, and what to do; '' where none does."""
    twice = [name for name in known if list(names).count(name) > 1]
    return f"{', '.join(twice)} twice in a message: publish each joint once" if twice else ""


@dataclass(frozen=True)
class Tick:
    """What happened in a control tick, for the controller and for the record.

    Args:
        time_ns: When.
        state: The state in which it was decided.
        faults: What the watchdog found.
        held: The transition, where faults or the gate of two arms made it hold just now.
        selection: Whose command counted.
        decision: The gate's; None without a command.
        setpoint: What goes to the controller; None: nothing is sent.
    """

    time_ns: int
    state: ArmState
    faults: tuple[Fault, ...]
    held: Transition | None
    selection: Selection
    decision: GateDecision | None
    setpoint: Setpoint | None

    def record(self) -> dict[str, Any]:
        """The tick in plain Python values that JSON takes."""
        return {
            "time_ns": self.time_ns,
            "state": str(self.state),
            "faults": [f"{fault.kind}: {fault.detail}" for fault in self.faults],
            "source": self.selection.source,
            "intervention": self.selection.intervention,
            "intervention_number": self.selection.number,
            "gate": None if self.decision is None else self.decision.record(),
            "setpoint": None if self.setpoint is None else self.setpoint.positions.tolist(),
        }


class ArmRuntime:
    """An arm's core as the bridge uses it: events and observations in, one set point per tick out.

    Args:
        robot: The arm, or two under one gate.
        cameras: Names of the cameras whose age counts.
        stops: Whether each set point goes out with the stop after it: nothing more is then sent of a stop that may lie
            far from an arm that is not seen.

    Example:
        >>> runtime = ArmRuntime(load_robot("fr3"), ["wrist"])
        >>> runtime.joint_states(measured, stamp_ns)
        >>> runtime.fire(Event.ARM, now_ns)
        >>> setpoint = runtime.tick(now_ns, policy_command).setpoint
    """

    def __init__(self, robot: Robot | TwoArmRobot, cameras: Sequence[str], stops: bool = False) -> None:
        self.robot, self.gate, self._stops = robot, robot.gate(), stops
        self.machine = StateMachine()
        self.mux = TakeoverMux(self.machine)
        self.watchdog = Watchdog(robot.watchdog, self.gate.period_ns, cameras)
        self.buttons = Buttons()
        self._measured = deque[tuple[int, np.ndarray]](maxlen=256)
        self._setpoint: Setpoint | None = None
        self._unseen, self._given_up_ns = False, -1  # joints were not heard; when the set point was given up for good
        self._settled, self._state = (
            True,
            ArmState.IDLE,
        )  # whether a held arm stands where it is asked to; the last tick's

    def joint_states(
        self, names: Sequence[str], positions: Sequence[float], stamp_ns: int, now_ns: int | None = None
    ) -> Reason | None:
        """Note measured joint positions, in any order and among others, as controllers publish them.

        Args:
            names: One name per position.
            positions: Angles, rad.
            stamp_ns: When they were measured.
            now_ns: When they arrived, where another computer's clock stamped them.

        Returns:
            Why they are not used: a joint is missing, occurs twice or is not finite, or the stamp lies in the future.
            They then age, and the arm holds.
        """
        if twice := repeated(names, self.robot.limits.names):
            return Reason("names", twice)
        known = dict(zip(names, positions, strict=False))
        missing = [name for name in self.robot.limits.names if name not in known]
        if missing:
            return Reason("names", f"no {', '.join(missing)} among {', '.join(names):.200}")
        measured = np.array([known[name] for name in self.robot.limits.names], np.float64)
        if not np.isfinite(measured).all():
            return Reason("not_finite", "measured positions")
        if ahead := self.watchdog.observed(self.watchdog.JOINT_STATES, stamp_ns, now_ns):
            return Reason("stamp", ahead)
        if not self._measured or stamp_ns > self._measured[-1][0]:
            self._measured.append((stamp_ns, measured))
        sent = None if self._setpoint is None else self._setpoint.positions
        self.watchdog.compare(self.robot.limits.names, measured, sent, stamp_ns)
        if self._setpoint is not None and not self._unseen:
            self.watchdog.tracked(float(np.abs(measured - self._setpoint.positions).max()))
        return None

    def button(
        self, pressed: bool, now_ns: int, key: bytes = b"", name: str = "", number: int | None = None
    ) -> tuple[bool, Transition | None]:
        """Note what a publisher says of its emergency stop's button; see `Buttons.heard`.

        Returns:
            Whether it moved, and the transition where the arm is stopped just now.
        """
        moved = self.buttons.heard(key, name, pressed, now_ns, number)
        return moved, self._pressed(now_ns)

    def _pressed(self, now_ns: int) -> Transition | None:
        down = self.buttons.pressed
        return self.machine.button(bool(down), now_ns, ", ".join(filter(None, down)))

    def faults(self, now_ns: int) -> tuple[Fault, ...]:
        """All reasons to hold at `now_ns`: the watchdog's, and an emergency stop that fell silent."""
        found, silent = self.watchdog.faults(now_ns), self.buttons.problem(now_ns)
        return (*found, Fault(STOP, silent)) if silent else found

    def fire(self, event: Event, now_ns: int, reason: str = "") -> Transition:
        """Apply an event; arming starts the gate at the measured pose, and a set point that moves is not disarmed.

        Args:
            event: What somebody wants.
            now_ns: The time.
            reason: Why, for the record.

        Returns:
            What came of it; arming an arm outside its limits is refused with the gate's reason. An arm that did not
            follow its set point runs only after it was armed again.
        """
        state = self.machine.state
        if event is Event.DISARM and state in (ArmState.ARMED, ArmState.HOLDING) and not self.gate.at_rest:
            return Transition(now_ns, event, state, state, "the arm still brakes: disarm it at rest", accepted=False)
        if event is Event.ARM and state is ArmState.IDLE:
            self._setpoint, self._unseen, self._given_up_ns, self._settled = None, False, -1, True
            self.watchdog.track_anew()
            try:
                # on the ticks' grid, not at this moment: half a tick beside it, jitter would count ticks twice or never
                start_ns = now_ns - now_ns % self.gate.period_ns
                self.gate.start(self._measured[-1][1] if self._measured else np.array([]), start_ns)
            except UserError as error:
                return Transition(now_ns, event, ArmState.IDLE, ArmState.IDLE, str(error), accepted=False)
        if event is Event.RESET:
            self._pressed(now_ns)  # a button's name may come after its message, and it may be gone and replaced by now
        fired = self.machine.fire(event, now_ns, reason, faults=self.faults(now_ns))
        if fired.accepted and event in (Event.START, Event.RESUME):
            self.settle()
        possible = (fired.before, event) in TRANSITIONS
        if possible and not fired.accepted and event in (Event.START, Event.RESUME) and self.watchdog.lost_track:
            return replace(fired, reason=f"the arm did not follow its set point ({self.watchdog.lost_track}): {_LOST}")
        return fired

    def settle(self) -> None:
        """Begin where the arm is measured: one that was not seen for a while, or is held and does not follow."""
        measured = self._measured[-1][1]
        off = not self._settled and np.abs(measured - self.gate.positions).max() > _OFF
        if (self._unseen or (off and self._rests)) and not self.gate.brake_from(measured, self._speed()):
            self.watchdog.lose_track("outside its limits where it is measured")
        self._unseen, self._settled = False, True

    def tick(self, now_ns: int, policy: Command | None) -> Tick:
        """Run one control tick.

        A set point that the arm may be far from is not sent on: the controller would jump to it as soon as it listens.
        One that the arm did not follow is given up for the stop from where the arm is measured, which is sent for
        `_REPEATED_NS`, and then nothing until the arm is armed again. While joint states are missing or frozen, the
        stop goes out, if the last message did not hold it, and then nothing until they are back; the set point is then
        where the arm is measured.
        So it is where an arm that is held stands still elsewhere.

        Args:
            now_ns: The time: a multiple of the gate's period, or less than half of one later (see `first_tick`).
            policy: The policy's command for this tick, if it has one.

        Returns:
            What happened, with the set point to send, if any.
        """
        self.watchdog.tick(now_ns)
        faults = self.faults(now_ns)
        stops = faults if self.machine.state is ArmState.RUNNING else self._human_stops(faults)
        held = None
        if stops and self.machine.state in (ArmState.RUNNING, ArmState.HUMAN):
            held = self.machine.fire(Event.HOLD, now_ns, "; ".join(f"{fault.kind}: {fault.detail}" for fault in stops))
        unheard = self.watchdog.frozen or any(one.kind == _UNHEARD for one in faults)
        silent = self.machine.sends and self._gives_up(now_ns, unheard=unheard)
        selection, decision, setpoint = self.mux.select(policy, now_ns), None, None
        if self.machine.sends and selection.command is not None:
            decision = self.gate.decide(selection.command, now_ns)
            setpoint = decision.setpoint
            if decision.outcome is GateOutcome.HOLD:
                why = "; ".join(f"{reason.kind}: {reason.detail}" for reason in decision.reasons)
                held = self.machine.fire(Event.HOLD, now_ns, why)
        elif self.machine.sends:
            setpoint = self.gate.hold(now_ns)
            told = self.gate.at_rest or (self._stops and self._unseen)  # the last message ends with the stop
            setpoint = None if silent and told else setpoint
        if not self.machine.sends:
            self._setpoint = None
        elif setpoint is not None:
            self._setpoint = setpoint
        return Tick(now_ns, self.machine.state, faults, held, selection, decision, setpoint)

    def _gives_up(self, now_ns: int, *, unheard: bool) -> bool:
        """Give up a set point that the arm may be far from; whether nothing is to be sent once the stop is over."""
        if self.watchdog.lost_track and self._given_up_ns < 0 and not unheard:
            self.gate.brake_from(self._measured[-1][1], self._speed())
            self._given_up_ns = now_ns
        self._unseen = self._unseen or unheard
        state, before, self._state = self.machine.state, self._state, self.machine.state
        self._settled = self._settled and not (state is ArmState.HOLDING and before is not ArmState.HOLDING)
        if not unheard and (self._rests or (self._unseen and state in (ArmState.RUNNING, ArmState.HUMAN))):
            self.settle()
        given_up = self._given_up_ns >= 0 and now_ns - self._given_up_ns >= _REPEATED_NS
        return self._unseen or given_up

    @property
    def _rests(self) -> bool:
        return bool(np.abs(self._speed()).max() < _REST)

    def _speed(self) -> np.ndarray:
        """How fast the joints moved of late [n], rad/s; NaN where too few are known to say."""
        stamp_ns, last = self._measured[-1]
        most_ns = self.robot.watchdog.joint_state_age_s * NANOSECONDS
        for before_ns, angles in reversed(self._measured):
            if _SPEED_NS <= stamp_ns - before_ns <= most_ns:
                return (last - angles) * (NANOSECONDS / (stamp_ns - before_ns))
        return np.full_like(last, np.nan)

    @staticmethod
    def _human_stops(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        return tuple(fault for fault in faults if fault.kind in _STOP_A_HUMAN)
