"""LeRobot's SO-101 follower behind the safety gate: its own surface, and no goal that the gate has not passed.

LeRobot itself is not imported: any object with its `Robot`'s methods serves.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.gate import NANOSECONDS, Command
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.core.runtime import ArmRuntime, Tick, first_tick
from embodied_rl.real_robot.core.states import ArmState, Event, Transition

_LAST_STEP = 4095
"""Of the encoder's 4096 a turn: LeRobot divides by it."""
_REST_S = 2.0


class GatedFollower:
    """A follower arm that is armed, watched and stopped as any other, and used as LeRobot's loops use theirs.

    One thread reads the follower and sends it set points; `send_action` only says where the arm should go.

    Args:
        follower: LeRobot's, not connected yet: its methods, `config.use_degrees` and `calibration` are used.
        robot: The arm, with the follower's names of motors; the last motor is the gripper.
        fps: Actions a second; each is approached along a line for as long.

    Attributes:
        last: The last control tick, with its state, faults and the gate's decision; None before the first.

    Raises:
        UserError: The arm's file has no gripper.

    Example:
        >>> arm = GatedFollower(SO101Follower(SO101FollowerConfig(port="/dev/ttyACM0")), load_robot("so101"))
        >>> arm.connect()
        >>> arm.send_action(act(arm.get_observation()))  # 30 times a second: a policy that falls silent is a fault
        >>> arm.fire(Event.ARM), arm.fire(Event.START)
    """

    def __init__(self, follower: Any, robot: Robot, fps: float = 30.0) -> None:
        grip, gate = robot.gripper, robot.gripper_gate()
        if grip is None or gate is None:
            raise UserError(f"{robot.name}: name its gripper in the arm's file; it is the follower's last motor")
        self.runtime, self._follower, self._grip, self._grip_gate = ArmRuntime(robot, []), follower, grip, gate
        self._names = tuple(f"{motor}.pos" for motor in (*robot.limits.names, *grip.names))
        self._scale = self._zero = np.zeros(len(self._names))
        self._step_ns, self._since_ns = round(NANOSECONDS / fps), 0
        self._from = self._goal = np.full(len(self._names), np.nan)
        self._observation, self._sent = dict[str, Any](), dict[str, float]()
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._error: BaseException | None = None
        self.last: Tick | None = None

    def connect(self) -> None:
        """Connect the follower, and run control ticks from now on; the arm is not armed.

        Raises:
            UserError: It has other motors than the arm's file.
        """
        self._follower.connect()
        self._observation = self._follower.get_observation()
        if missing := sorted(set(self._names) - set(self._observation)):
            raise UserError(f"the follower has no {', '.join(missing)}: give the arm's file its names of motors")
        self._scale = np.array([*self._radians(), (self._grip.upper[0] - self._grip.lower[0]) / 100])
        self._zero = np.array([*np.zeros(len(self._names) - 1), self._grip.lower[0]])
        self._thread.start()

    def get_observation(self) -> dict[str, Any]:
        """What the follower said last, in LeRobot's units."""
        with self._lock:
            self._raise_problem()
            return dict(self._observation)

    def send_action(self, action: Mapping[str, float], now_ns: int | None = None) -> dict[str, float]:
        """Say where the arm should be one action from now, as 'MOTOR.pos' in LeRobot's units.

        Returns:
            The goals that the follower was sent last; empty before the arm was armed.

        Raises:
            UserError: A motor is missing or unknown.
        """
        if sorted(action) != sorted(self._names):
            raise UserError(f"the action has {', '.join(sorted(action)):.200}; give {', '.join(self._names)}")
        with self._lock:
            self._raise_problem()
            self._since_ns, self._goal = _now(now_ns), self._inward(action)
            self._from = self._set_points() if self.runtime.machine.sends else self._goal
            self.runtime.watchdog.heartbeat(self._since_ns)
            return dict(self._sent)

    def fire(self, event: Event, now_ns: int | None = None) -> Transition:
        """Arm, start, hold, resume, disarm, or stop in an emergency: what came of it, and why where it was refused."""
        with self._lock:
            fired = self.runtime.fire(event, _now(now_ns), "asked for")
            if fired.accepted and event is Event.ARM:
                low, high, period_ns = self._grip.lower, self._grip.upper, self._grip_gate.period_ns
                width, span = self._inward(self._observation)[-1:], 1e-3 * (high - low)
                self._grip_gate.start(np.clip(width, low + span, high - span), fired.time_ns // period_ns * period_ns)
            if fired.accepted and event in (Event.START, Event.RESUME):
                self._goal = self._from = self._set_points()  # what was asked of an arm at rest is old
            return fired

    def tick(self, now_ns: int) -> Tick:
        """Read the follower, decide one set point and send it."""
        try:
            seen, problem = self._follower.get_observation(), ""
        except OSError as error:  # a servo or a camera that does not answer: the joints age, and the arm holds
            seen, problem = None, f"{type(error).__name__}: {error}"
        with self._lock:
            self.runtime.watchdog.note("follower", problem)
            joints = self.runtime.robot.limits.names
            if seen is not None:
                self._observation = seen
                self.runtime.joint_states(joints, list(self._inward(seen)[:-1]), now_ns)
            share = min(max((now_ns - self._since_ns) / self._step_ns, 0.0), 1.0)
            wanted = self._from + share * (self._goal - self._from)
            self.last = tick = self.runtime.tick(now_ns, Command(now_ns, joints, wanted[:-1]))
            if tick.setpoint is not None:
                if tick.decision is None:
                    self._grip_gate.hold(now_ns)
                else:
                    self._grip_gate.decide(Command(now_ns, self._grip.names, wanted[-1:]), now_ns)
                goals = (self._set_points() - self._zero) / self._scale
                self._sent = dict(zip(self._names, goals.tolist(), strict=True))
                self._follower.send_action(self._sent)  # under the lock: after an emergency stop nothing is sent
            return tick

    def disconnect(self) -> None:
        """Bring the arm to rest and disarm it, then disconnect: unless told otherwise LeRobot lets go of it then."""
        if self.runtime.machine.state is ArmState.RUNNING:
            self.fire(Event.HOLD)
        until_ns = _now(None) + round(_REST_S * NANOSECONDS)
        while self.runtime.machine.sends and not self.fire(Event.DISARM).accepted and _now(None) < until_ns:
            self._stopping.wait(self._step_ns / NANOSECONDS)  # the set points of the stop still go out
        self._stopping.set()
        self._thread.join(_REST_S)
        self._follower.disconnect()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                due_ns = first_tick(_now(None), self.runtime.gate.period_ns)
                self._stopping.wait((due_ns - _now(None)) / NANOSECONDS)
                self.tick(_now(None))
        except BaseException as error:
            self._error = error
            raise

    def _raise_problem(self) -> None:
        if self._error is not None:
            raise RuntimeError("the follower's control thread has ended") from self._error

    def _set_points(self) -> np.ndarray:
        return np.append(self.runtime.gate.positions, self._grip_gate.positions)

    def _inward(self, values: Mapping[str, Any]) -> np.ndarray:
        """Angles (rad) and the gripper's width (m), [motors], of values in LeRobot's units."""
        return np.array([float(values[name]) for name in self._names]) * self._scale + self._zero

    def _radians(self) -> list[float]:
        """Each joint's angle in one of the follower's units: a degree, or a hundredth of half its calibrated range."""
        joints = self.runtime.robot.limits.names
        if self._follower.config.use_degrees:
            return [math.radians(1)] * len(joints)
        ranges = [self._follower.calibration[joint] for joint in joints]
        return [math.tau * (one.range_max - one.range_min) / 2 / _LAST_STEP / 100 for one in ranges]


def _now(now_ns: int | None) -> int:
    """The time, ns, or what a test says it is."""
    return time.monotonic_ns() if now_ns is None else now_ns
