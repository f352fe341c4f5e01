"""Who may command the arm: a small state machine with a latched emergency stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from embodied_rl.real_robot.core.watchdog import Fault


class ArmState(StrEnum):
    """Where the arm stands."""

    IDLE = "idle"
    """Nothing is sent."""
    ARMED = "armed"
    """Checked and ready; the set point stays."""
    RUNNING = "running"
    """The policy commands."""
    HOLDING = "holding"
    """The arm brakes and stays, until somebody resumes, takes over or disarms."""
    HUMAN = "human"
    """A human commands."""
    ESTOPPED = "e-stopped"
    """Nothing is sent, until an explicit reset."""


class Event(StrEnum):
    """What may happen."""

    ARM = "arm"
    """The pre-flight checks have passed."""
    START = "start"
    HOLD = "hold"
    """A watchdog's fault, or somebody's wish."""
    RESUME = "resume"
    TAKEOVER = "takeover"
    RELEASE = "release"
    """The human lets go: the arm holds until it is resumed."""
    DISARM = "disarm"
    ESTOP = "estop"
    RESET = "reset"
    """Somebody has looked at the arm."""


TRANSITIONS: dict[tuple[ArmState, Event], ArmState] = {
    (ArmState.IDLE, Event.ARM): ArmState.ARMED,
    (ArmState.ARMED, Event.START): ArmState.RUNNING,
    (ArmState.ARMED, Event.TAKEOVER): ArmState.HUMAN,
    (ArmState.ARMED, Event.DISARM): ArmState.IDLE,
    (ArmState.RUNNING, Event.HOLD): ArmState.HOLDING,
    (ArmState.RUNNING, Event.TAKEOVER): ArmState.HUMAN,
    (ArmState.HOLDING, Event.HOLD): ArmState.HOLDING,
    (ArmState.HOLDING, Event.RESUME): ArmState.RUNNING,
    (ArmState.HOLDING, Event.TAKEOVER): ArmState.HUMAN,
    (ArmState.HOLDING, Event.DISARM): ArmState.IDLE,
    (ArmState.HUMAN, Event.HOLD): ArmState.HOLDING,
    (ArmState.HUMAN, Event.RELEASE): ArmState.HOLDING,
    **{(state, Event.ESTOP): ArmState.ESTOPPED for state in ArmState},
    (ArmState.ESTOPPED, Event.RESET): ArmState.IDLE,
}
"""All transitions; any other event is refused and changes nothing."""

_NEEDS_HEALTH = (Event.ARM, Event.START, Event.RESUME)


@dataclass(frozen=True)
class Transition:
    """An event and what came of it, for the record."""

    time_ns: int
    event: Event
    before: ArmState
    after: ArmState
    reason: str
    accepted: bool


class StateMachine:
    """The arm's state. It starts idle; `ESTOPPED` is left by a reset alone, once the button is out again.

    Example:
        >>> machine = StateMachine()
        >>> machine.fire(Event.ARM, now_ns=0).after
        <ArmState.ARMED: 'armed'>
    """

    def __init__(self) -> None:
        self._state, self._pressed, self._names = ArmState.IDLE, False, ""

    @property
    def state(self) -> ArmState:
        """The present state."""
        return self._state

    @property
    def sends(self) -> bool:
        """Whether set points go to the controller at all."""
        return self._state not in (ArmState.IDLE, ArmState.ESTOPPED)

    def button(self, pressed: bool, now_ns: int, names: str = "") -> Transition | None:
        """Note the emergency stop's position; pressing it fires `ESTOP`.

        Args:
            pressed: Whether it is pressed now: any of its buttons.
            now_ns: The time.
            names: Of the buttons that are pressed.

        Returns:
            The transition where it was pressed just now.
        """
        newly, self._pressed, self._names = pressed and not self._pressed, pressed, f": {names}" if names else ""
        return self.fire(Event.ESTOP, now_ns, f"button{self._names}") if newly else None

    def fire(self, event: Event, now_ns: int, reason: str = "", *, faults: Sequence[Fault] = ()) -> Transition:
        """Apply an event.

        Args:
            event: What happened.
            now_ns: The time.
            reason: Why, for the record.
            faults: What a watchdog reports: with any the arm is neither armed, started nor resumed.

        Returns:
            What came of it. A refused event leaves the state and says why in `reason`.
        """
        before = self._state
        after, refusal = TRANSITIONS.get((before, event)), ""
        if after is None:
            refusal = f"{event} is not possible while {before}"
        elif event is Event.RESET and self._pressed:
            refusal = f"the emergency stop is still pressed{self._names}"
        elif event in _NEEDS_HEALTH and faults:
            found = "; ".join(f"{fault.kind}: {fault.detail}" for fault in faults)
            refusal = f"{event} is not possible while a watchdog reports faults: {found}"
        if refusal or after is None:
            return Transition(now_ns, event, before, before, refusal, accepted=False)
        self._state = after
        return Transition(now_ns, event, before, after, reason, accepted=True)
