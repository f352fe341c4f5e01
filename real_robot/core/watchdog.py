"""When the arm must hold: old observations, a silent policy, a control loop out of time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NANOSECONDS = 1_000_000_000
MOST_AHEAD_NS = 100_000_000
"""How far in the future a stamp of another computer's clock may lie."""
_STILL_RAD, _MOVED_RAD = 0.002, 0.05
"""A joint that is measured within so much of where it was, while its set point moves so far, is not measured."""
_STARTS_NS, _FAST = 100_000_000, 0.05
"""What an arm may take to follow from rest, and rad/s up to which a joint is at rest."""


@dataclass(frozen=True)
class WatchdogLimits:
    """How long what may fail to come.

    Args:
        camera_age_s: Age of the newest image of each camera, s.
        joint_state_age_s: Age of the newest joint states, s.
        policy_silence_s: Time since the policy's last sign of life, s.
        tick_jitter_s: Deviation of a control tick's length from its period, s.
        tracking_error: Distance of any joint from its set point, rad: an arm that is stuck must not be pushed on. The
            fault stays until the arm is armed again.
    """

    camera_age_s: float
    joint_state_age_s: float
    policy_silence_s: float
    tick_jitter_s: float
    tracking_error: float


TRACKING = "tracking"
"""The kind of the fault of an arm that does not follow its set points, as one that is pushed against something."""


@dataclass(frozen=True)
class Fault:
    """One reason to hold.

    kind: 'camera', 'joint_states', 'policy', 'jitter', 'tracking', or what somebody else noted (`Watchdog.note`).
    """

    kind: str
    detail: str


class Watchdog:
    """Keeps the times of what came and says what is overdue.

    Nothing has come at the start, so everything is a fault until it does.

    Args:
        limits: The limits.
        period_ns: Length of a control tick, ns.
        cameras: Their names.
        window: Ticks for which a tick out of time counts.

    Example:
        >>> watchdog = Watchdog(robot.watchdog, gate.period_ns, ["wrist"])
        >>> watchdog.observed("wrist", stamp_ns)
        >>> watchdog.faults(now_ns)
        (Fault(kind='joint_states', detail='none yet'), Fault(kind='policy', detail='none yet'))
    """

    JOINT_STATES, POLICY = "joint_states", "policy"

    def __init__(self, limits: WatchdogLimits, period_ns: int, cameras: Sequence[str], window: int = 20) -> None:
        self._limits_ns = {(camera, "camera"): round(limits.camera_age_s * NANOSECONDS) for camera in cameras}
        self._limits_ns[self.JOINT_STATES, self.JOINT_STATES] = round(limits.joint_state_age_s * NANOSECONDS)
        self._limits_ns[self.POLICY, self.POLICY] = round(limits.policy_silence_s * NANOSECONDS)
        self._seen: dict[str, int | None] = {name: None for name, _ in self._limits_ns}
        self._ahead: dict[str, str] = {}
        self._period_ns, self._jitter_ns = period_ns, round(limits.tick_jitter_s * NANOSECONDS)
        self._last_tick_ns: int | None = None
        self._deviations_ns: deque[int] = deque(maxlen=window)
        self._most_error, self._lost_track = limits.tracking_error, ""
        self._noted = dict[tuple[str, str], str]()
        self._still: _Still | None = None
        self.frozen = False
        """Whether joints are measured where they were: the arm may be elsewhere."""

    def observed(self, source: str, stamp_ns: int, now_ns: int | None = None) -> str:
        """Note an observation.

        Args:
            source: A camera's name, or `JOINT_STATES`.
            stamp_ns: When it was taken (not when it arrived), ns of the control loop's clock.
            now_ns: When it arrived, where another computer's clock stamped it. A stamp a little ahead counts as now: it
                would stay fresh for longer than it is.

        Returns:
            Why it must not be used: its stamp lies more than `MOST_AHEAD_NS` in the future, which is a fault until a
            right one comes. '' where it may be used.
        """
        last = self._seen[source]
        if now_ns is not None and stamp_ns - now_ns > MOST_AHEAD_NS:
            self._ahead[source] = _ahead(stamp_ns - now_ns)
            return self._ahead[source]
        stamp_ns = stamp_ns if now_ns is None else min(stamp_ns, now_ns)
        self._ahead.pop(source, None)
        self._seen[source] = stamp_ns if last is None else max(last, stamp_ns)
        return ""

    def compare(self, names: Sequence[str], measured: np.ndarray, setpoint: np.ndarray | None, stamp_ns: int) -> None:
        """Note joints that are measured where they were while their set point moves.

        Either their driver repeats itself or the arm does not follow: a fault until `track_anew`.

        Args:
            names: The joints' [n].
            measured: Where they are measured, rad.
            setpoint: Where they are asked to be; None while nothing is sent.
            stamp_ns: When they were measured.
        """
        if setpoint is None:
            self._still = None
            return
        if self._still is None:
            self._still = _Still(measured, setpoint, stamp_ns)
        apart = self._still.compare(measured, setpoint, stamp_ns)
        worst = int(apart.argmax())
        if apart[worst] > _MOVED_RAD and not self._lost_track:
            self.frozen = True
            self.lose_track(f"{names[worst]} is measured where it was, its set point {apart[worst]:.3f} rad further")

    def heartbeat(self, now_ns: int) -> None:
        """Note a sign of life of the policy: an answer, or its server's health."""
        self.observed(self.POLICY, now_ns)

    def age_s(self, source: str, now_ns: int) -> float | None:
        """How long ago the newest observation of a source was taken, s; None before the first."""
        stamp_ns = self._seen[source]
        return None if stamp_ns is None else (now_ns - stamp_ns) / NANOSECONDS

    def note(self, kind: str, detail: str, source: str = "") -> None:
        """Note what somebody else looks after: a fault of this kind while `detail` is not empty, of each source."""
        self._noted[kind, source] = f"{source}: {detail}" if source and detail else detail

    def tick(self, now_ns: int) -> None:
        """Note the start of a control tick."""
        if self._last_tick_ns is not None:
            self._deviations_ns.append(abs(now_ns - self._last_tick_ns - self._period_ns))
        self._last_tick_ns = now_ns

    def tracked(self, error: float) -> None:
        """Note the largest distance of a joint from its set point, rad.

        One that is too large stays a fault until `track_anew`, also where it shrinks: the set point may lie within
        what stopped the arm.
        """
        if not self._lost_track and not error <= self._most_error:
            self.lose_track(f"{error:.3f} rad off, at most {self._most_error:.3f}")

    def lose_track(self, why: str) -> None:
        """Note that the arm is not where its set point is: a fault until `track_anew`."""
        self._lost_track = self._lost_track or why

    def track_anew(self) -> None:
        """Forget that the arm did not follow: its set point is where it is measured."""
        self._lost_track, self._still, self.frozen = "", None, False

    @property
    def lost_track(self) -> str:
        """How far the arm was off its set point; '' where it followed."""
        return self._lost_track

    def faults(self, now_ns: int) -> tuple[Fault, ...]:
        """All reasons to hold at `now_ns`. A stamp in the future by more than its limit is one: clocks disagree."""
        found = []
        for (source, kind), limit_ns in self._limits_ns.items():
            stamp_ns = self._seen[source]
            name = f"{source}: " if kind == "camera" else ""
            if source in self._ahead:
                found.append(Fault(kind, f"{name}{self._ahead[source]}"))
            elif stamp_ns is None:
                found.append(Fault(kind, f"{name}none yet"))
            elif stamp_ns - now_ns > limit_ns:
                found.append(Fault(kind, f"{name}{_ahead(stamp_ns - now_ns)}"))
            elif now_ns - stamp_ns > limit_ns:
                age, limit = (now_ns - stamp_ns) / NANOSECONDS, limit_ns / NANOSECONDS
                found.append(Fault(kind, f"{name}{age:.3f} s old, at most {limit:.3f}"))
        late_ns = 0 if self._last_tick_ns is None else now_ns - self._last_tick_ns - self._period_ns
        worst_ns = max(late_ns, *self._deviations_ns, 0)
        if worst_ns > self._jitter_ns:
            worst, most = worst_ns / NANOSECONDS, self._jitter_ns / NANOSECONDS
            found.append(Fault("jitter", f"a tick was {worst:.4f} s off, at most {most:.4f}"))
        if self._lost_track:
            found.append(Fault(TRACKING, self._lost_track))
        found += [Fault(kind, detail) for (kind, _), detail in self._noted.items() if detail]
        return tuple(found)


class _Still:
    """Where each joint was measured last that it moved, and how far its set point is from there since."""

    def __init__(self, measured: np.ndarray, setpoint: np.ndarray, stamp_ns: int) -> None:
        self._was, self._asked, self._since_ns = measured.copy(), setpoint.copy(), np.full(len(measured), stamp_ns)
        self._moving = np.zeros(len(measured), bool)

    def compare(self, measured: np.ndarray, setpoint: np.ndarray, stamp_ns: int) -> np.ndarray:
        """How far each set point went while its joint is measured where it was [n], rad; 0 where it may still start."""
        way = np.abs(measured - self._was)
        moved = ~(way <= _STILL_RAD)
        seconds = np.maximum(stamp_ns - self._since_ns, 1) / NANOSECONDS
        self._moving = np.where(moved, way / seconds > _FAST, self._moving)
        self._was, self._asked = np.where(moved, measured, self._was), np.where(moved, setpoint, self._asked)
        apart = np.minimum(np.abs(setpoint - self._asked), np.abs(setpoint - measured))
        rests = ~self._moving & (np.abs(setpoint - self._asked) <= _STILL_RAD)
        self._since_ns = np.where(moved | rests, stamp_ns, self._since_ns)
        return np.where(self._moving | (stamp_ns - self._since_ns >= _STARTS_NS), apart, 0.0)


def _ahead(by_ns: int) -> str:
    seconds = by_ns / NANOSECONDS
    return f"stamped {seconds:.3f} s in the future: the computers' clocks differ, keep them together (chrony)"
