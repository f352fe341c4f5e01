"""Who is heard: a human beats the policy at any moment, and keeps the arm until it is explicitly released."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.states import ArmState, Event, StateMachine, Transition

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Selection:
    """Whose command goes to the gate.

    Args:
        command: None: nobody's, so the arm holds.
        source: 'policy', 'human' or 'none'.
        intervention: Whether this step belongs to a human: the flag that training reads.
        number: Takeovers so far; tells neighbouring interventions apart.
    """

    command: Command | None
    source: str
    intervention: bool
    number: int


class TakeoverMux:
    """Chooses between the policy's command and a human's.

    A human takes over by engaging (a dead-man's switch, a pressed button). Letting the switch go makes the arm hold;
    only `release` ends the intervention, and the policy then still waits to be resumed.

    Each press takes over once. A switch that is still held after a release, a hold or a refusal, and messages that come
    late, take nothing: the device must say once that it is let go.

    Args:
        machine: The arm's state.
        silence_s: A human's command older than this is not used, s.

    Example:
        >>> mux.human(command, now_ns, engaged=joystick.trigger)
        >>> mux.select(policy_command, now_ns).source
        'human'
    """

    def __init__(self, machine: StateMachine, silence_s: float = 0.1) -> None:
        self._machine, self._silence_ns = machine, round(silence_s * NANOSECONDS)
        self._command: Command | None = None
        self._heard_ns, self._number = 0, 0
        self._pressed = False

    def human(self, command: Command, now_ns: int, *, engaged: bool) -> Transition | None:
        """Note what the human's device says.

        Args:
            command: What it asks.
            now_ns: When it came.
            engaged: Whether the human wants the arm; without, the command is void.

        Returns:
            The takeover, where the switch was pressed just now (it may be refused: an idle or stopped arm is nobody's).
        """
        newly, self._pressed = engaged and not self._pressed, engaged
        self._command, self._heard_ns = (command if engaged else None), now_ns
        if not newly or self._machine.state is ArmState.HUMAN:
            return None
        transition = self._machine.fire(Event.TAKEOVER, now_ns, "human engaged")
        self._number += transition.accepted
        return transition

    def silent(self) -> None:
        """Void the human's command, where the device says nothing of its switch: that is no letting go."""
        self._command = None

    def release(self, now_ns: int) -> Transition:
        """End the intervention; the arm holds."""
        self._command = None
        return self._machine.fire(Event.RELEASE, now_ns, "human released")

    def select(self, policy: Command | None, now_ns: int) -> Selection:
        """Whose command counts now.

        Args:
            policy: The policy's command for this tick, if it has one.
            now_ns: The time.
        """
        if self._machine.state is ArmState.HUMAN:
            fresh = now_ns - self._heard_ns <= self._silence_ns
            return Selection(self._command if fresh else None, "human", True, self._number)
        if self._machine.state is ArmState.RUNNING:
            return Selection(policy, "policy", False, self._number)
        return Selection(None, "none", False, self._number)
