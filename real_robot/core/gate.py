"""The safety gate: every command to the arm passes here, and every decision has a reason that can be recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.limits import AxisLimits
from embodied_rl.real_robot.core.motion import Inside, Limit, Motion, State

NANOSECONDS = 1_000_000_000


class GateOutcome(StrEnum):
    """What became of a command."""

    ALLOW = "allow"
    """The set point is the command."""
    REWRITE = "rewrite"
    """The set point is the nearest one within the limits."""
    BLOCK = "block"
    """The command is void; the arm brakes for this tick."""
    HOLD = "hold"
    """The command is void; both of two arms brake, and hold until somebody resumes them."""


@dataclass(frozen=True)
class Reason:
    """Why a command is not passed on as it is.

    kind: 'names', 'order', 'shape', 'not_finite', 'stamp', 'rate', 'late', or a limit: 'position', 'velocity',
    'acceleration', 'jerk', 'braking', 'workspace', or between two arms 'distance'.
    """

    kind: str
    detail: str


@dataclass(frozen=True)
class Command:
    """What a policy or a human asks of the axes.

    Args:
        stamp_ns: When the command was made, ns of the gate's clock.
        names: The axes, in the limits' order.
        positions: Where they should be at this tick [n], rad or m.
        velocities: How fast they should move there [n], per s; None: as the step from the command before says, or
            after a pause the step from the set point.
        source: Who asks, for the record.
    """

    stamp_ns: int
    names: Sequence[str]
    positions: Any
    velocities: Any = None
    source: str = "policy"


@dataclass(frozen=True)
class Setpoint:
    """What goes to the controller: positions [n] and velocities [n] at a tick's time."""

    stamp_ns: int
    positions: np.ndarray
    velocities: np.ndarray


@dataclass(frozen=True)
class GateDecision:
    """What the gate made of a command; `setpoint` is None only where the tick has its set point already."""

    outcome: GateOutcome
    reasons: tuple[Reason, ...]
    setpoint: Setpoint | None
    command: Command

    def record(self) -> dict[str, Any]:
        """The decision in plain Python values that JSON takes; numbers that are not finite become strings."""
        return {
            "outcome": str(self.outcome),
            "reasons": [{"kind": reason.kind, "detail": reason.detail} for reason in self.reasons],
            "source": self.command.source,
            "stamp_ns": repr(self.command.stamp_ns),
            "command": repr(self.command.positions),
            "setpoint": None if self.setpoint is None else self.setpoint.positions.tolist(),
        }


def read_command(command: Command, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray | None] | Reason:
    """The numbers of a command whose form is right.

    Args:
        command: Anything that a topic or a socket brought.
        names: The axes that are expected, in order.

    Returns:
        Positions and velocities, float64 [n] and finite, or why the command is void.
    """
    if not isinstance(command.names, (tuple, list)) or not all(isinstance(name, str) for name in command.names):
        return Reason("names", f"{command.names!r:.80} is no list of names")
    if tuple(command.names) != names:
        kind = "order" if sorted(command.names) == sorted(names) else "names"
        return Reason(kind, f"got {', '.join(command.names):.200}; expected {', '.join(names)}")
    numbers = []
    for what in ("positions", "velocities"):
        values = getattr(command, what)
        if values is None and what == "velocities":
            continue
        read = _numbers(values, len(names))
        if read is None:
            return Reason("shape", f"{what} are not {len(names)} numbers")
        if not np.isfinite(read).all():
            axes = [name for name, fine in zip(names, np.isfinite(read), strict=True) if not fine]
            return Reason("not_finite", f"{what} of {', '.join(axes)}")
        numbers.append(read)
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _numbers(values: Any, count: int) -> np.ndarray | None:
    try:
        read = np.asarray(values)
    except (TypeError, ValueError, OverflowError):  # ragged
        return None
    if read.shape != (count,) or read.dtype.kind not in "fiu":
        return None
    with np.errstate(over="ignore"):
        return read.astype(np.float64)


class SafetyGate:
    """Turns commands into set points that keep every limit, one per tick of a fixed rate.

    The set point never leads to a state from which limits, workspace and a stop can't all be kept (see `motion`).

    Args:
        limits: The limits of the axes.
        rate_hz: Ticks per second.
        inside: The workspace in terms of axis positions [..., n]; None means everywhere.
        max_command_age_s: Older commands are void, s.

    Example:
        >>> gate = robot.gate()
        >>> gate.start(measured, now_ns=0)
        >>> gate.decide(Command(now, robot.limits.names, target), now).outcome
        <GateOutcome.REWRITE: 'rewrite'>
    """

    def __init__(
        self, limits: AxisLimits, rate_hz: float, inside: Inside | None = None, *, max_command_age_s: float = 0.1
    ) -> None:
        self.limits, self._labels = limits, limits.names
        self.period_ns = round(NANOSECONDS / rate_hz)
        self._motion = Motion(limits, self.period_ns / NANOSECONDS, inside)
        self._max_age_ns = round(max_command_age_s * NANOSECONDS)
        self._state: State | None = None
        self._start_ns = self._tick = self._last_stamp_ns = 0
        self._previous = np.zeros(len(limits.names))

    def start(self, positions: np.ndarray, now_ns: int) -> None:
        """Begin, or begin again, at rest at the measured positions.

        Args:
            positions: Where the arm is [n].
            now_ns: The time of tick 0.

        Raises:
            UserError: The arm is outside its limits or workspace: it must be moved by hand first.
        """
        read = _numbers(positions, len(self.limits.names))
        if read is None:
            raise UserError(f"the measured positions are not {len(self.limits.names)} numbers: check the joint states")
        if broken := self._rest_broken(read):
            why = "; ".join(f"{reason.kind} ({reason.detail})" for reason in broken)
            raise UserError(f"the arm can't start where it is: {why}. Move it inside by hand")
        self._state, self._start_ns, self._tick = self._motion.rest(read[None]), now_ns, 0
        self._last_stamp_ns, self._previous = now_ns - self._max_age_ns, read

    @property
    def positions(self) -> np.ndarray:
        """The present set point [n]."""
        return self._running().position[0].copy()

    @property
    def at_rest(self) -> bool:
        """Whether the set point does not move."""
        state = self._running()
        return not state.x.any() and not state.y.any()

    def decide(self, command: Command, now_ns: int) -> GateDecision:
        """Judge a command and move the set point on to the tick of `now_ns`.

        Args:
            command: What is asked.
            now_ns: The time.

        Returns:
            The decision. A second command within a tick is void and changes nothing.
        """
        self._running()
        missed = self._missed(now_ns)
        if missed < 0:
            return GateDecision(GateOutcome.BLOCK, (Reason("rate", f"tick {self._tick} is decided"),), None, command)
        late = (Reason("late", f"{missed} ticks passed on the way to rest"),) if missed else ()
        read = read_command(command, self.limits.names)
        void = read if isinstance(read, Reason) else self._stamp(command.stamp_ns, now_ns)
        if void is not None:
            return GateDecision(GateOutcome.BLOCK, (*late, void), self.hold(now_ns), command)
        assert not isinstance(read, Reason)
        if missed:
            self._brake(missed)
        self._last_stamp_ns = command.stamp_ns
        outcome, reasons = self._judge(*read)
        return GateDecision(outcome, (*late, *reasons), self._setpoint(), command)

    def hold(self, now_ns: int) -> Setpoint | None:
        """Brake, or stay at rest, up to the tick of `now_ns`; None where that tick has its set point already."""
        self._running()
        missed = self._missed(now_ns)
        if missed < 0:
            return None
        self._brake(missed + 1)
        return self._setpoint()

    def brake_from(self, positions: np.ndarray, velocities: np.ndarray) -> bool:
        """Give up the set point for where the arm is measured: what follows is the stop from there, and rest.

        Args:
            positions: Where the arm is [n].
            velocities: How fast it moves there [n], per s.

        Returns:
            Whether an arm may rest there: ranges and workspace.
        """
        self._running()
        self._state, self._previous = self._motion.brakes_from(positions[None], velocities[None]), positions
        return not self._rest_broken(positions)

    def stop_path(self) -> list[Setpoint]:
        """The set points of a stop from the present one, for controllers that follow a trajectory to its end."""
        state, path = self._running(), []
        for tick in range(1, len(self._motion.stop_path(state)) + 1):
            state = self._motion.brake(state)
            path.append(self._as_setpoint(state, self._tick + tick))
        return path

    def _running(self) -> State:
        if self._state is None:
            raise UserError("the gate has no start position: call start() with the measured positions")
        return self._state

    def _missed(self, now_ns: int) -> int:
        """Ticks since the last one that had no set point; -1 where the last one is now."""
        return (now_ns - self._start_ns + self.period_ns // 2) // self.period_ns - self._tick - 1

    def _brake(self, ticks: int) -> None:
        self._tick += ticks
        while ticks > 0 and not self.at_rest:
            self._state, ticks = self._motion.brake(self._running()), ticks - 1
        self._previous = self._running().position[0]

    def _judge(self, positions: np.ndarray, velocities: np.ndarray | None) -> tuple[GateOutcome, tuple[Reason, ...]]:
        """Move on by a tick towards a well-formed command: what became of it, and why."""
        if velocities is None:
            velocities = self._motion.implied_velocity(self._previous, positions)
        self._state, broken = self._motion.step(self._running(), positions[None], velocities[None])
        self._tick, self._previous = self._tick + 1, positions
        return (GateOutcome.REWRITE if broken.any() else GateOutcome.ALLOW), self._limits_broken(broken[0])

    def _rest_broken(self, positions: np.ndarray) -> tuple[Reason, ...]:
        """Which limits rest at [n] would break."""
        return self._limits_broken(self._motion.allows_rest(positions[None])[0])

    def _stamp(self, stamp_ns: int, now_ns: int) -> Reason | None:
        if not isinstance(stamp_ns, (int, np.integer)) or isinstance(stamp_ns, bool):
            return Reason("stamp", f"{stamp_ns!r:.40} is no time in ns")
        if stamp_ns <= self._last_stamp_ns:
            return Reason("stamp", "not newer than the last command")
        if not -self.period_ns <= now_ns - stamp_ns <= self._max_age_ns:
            return Reason("stamp", f"{(now_ns - stamp_ns) / NANOSECONDS:.3f} s old")
        return None

    def _limits_broken(self, broken: np.ndarray) -> tuple[Reason, ...]:
        found = []
        for limit in Limit:
            axes = [name for name, bits in zip(self._labels, broken, strict=True) if bits & limit]
            if axes:
                found.append(Reason(str(limit.name).lower(), ", ".join(axes)))
        return tuple(found)

    def _setpoint(self) -> Setpoint:
        return self._as_setpoint(self._running(), self._tick)

    def _as_setpoint(self, state: State, tick: int) -> Setpoint:
        stamp_ns = self._start_ns + tick * self.period_ns
        return Setpoint(stamp_ns, state.position[0].copy(), self._motion.velocity(state)[0])
