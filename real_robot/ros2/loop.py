"""The control loop without ROS: measured joints and chunks in, one set point a tick out. One lock, no clock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.real_robot.core.cartesian import ControlLaw, PoseReference, quaternion_xyzw, rotation_matrix
from embodied_rl.real_robot.core.executor import Chunk, ChunkExecutor, ExecutorConfig, PrefixRequest, Receipt
from embodied_rl.real_robot.core.gate import Command, Reason, Setpoint
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.core.runtime import ArmRuntime, Tick
from embodied_rl.real_robot.core.states import ArmState, Event, Transition
from embodied_rl.real_robot.ik import InverseKinematics
from embodied_rl.real_robot.ros2.events import (
    ActionTaken,
    ChunkDecided,
    CommandJudged,
    Events,
    Intervened,
    StateChanged,
)

_HISTORY = 256
"""Joint states that are kept: a second at the rates of arms."""
_HUMAN_SILENCE_NS = 100_000_000
_SAME_WIDTH = 1e-4
_LEASH = 0.15
"""How far the reference may run ahead of a joint's set point, rad: what the gate held back is caught up to there."""


@dataclass(frozen=True)
class Measured:
    """Joint angles [n] (rad) and finger positions (m) at a time."""

    stamp_ns: int
    angles: np.ndarray
    fingers: tuple[float, float]


@dataclass(frozen=True)
class Output:
    """What a tick sends.

    Args:
        tick: The decision with its set point; nothing is sent where that is None.
        stop: The set points of a stop from there on.
        position: The tool's at the set point [3], m, base frame.
        quaternion: The same, x, y, z, w.
        width: The gripper's, m; None without one.
    """

    tick: Tick
    stop: list[Setpoint]
    position: np.ndarray
    quaternion: np.ndarray
    width: float | None


class ControlLoop:
    """Executor, control law, inverse kinematics and the core's runtime in one, behind one lock.

    Args:
        robot: The arm.
        cameras: Names of its cameras.
        config: How chunks become actions.
        law: The controller of training.
        fingers: Joint names whose absolute positions add up to the gripper's width.
        stops: Whether set points come with the stop after them.

    Attributes:
        events: What happens, for whoever subscribes.

    Example:
        >>> loop = ControlLoop(robot, ["wrist"], config)
        >>> loop.joint_states(names, angles, now)
        >>> loop.fire(Event.ARM, now)
        >>> loop.tick(now).tick.setpoint
    """

    def __init__(
        self,
        robot: Robot,
        cameras: Sequence[str],
        config: ExecutorConfig,
        law: ControlLaw | None = None,
        fingers: Sequence[str] = (),
        stops: bool = True,
    ) -> None:
        self.robot, self.law = robot, law or ControlLaw()
        self.events = Events()
        self.runtime = ArmRuntime(robot, cameras)
        self._config, self._fingers, self._stops = config, tuple(fingers), stops
        self._open = dict.fromkeys(self._fingers, 0.0)
        self._open_width = 0.0
        self._ik, self._gripper = InverseKinematics(robot), robot.gripper_gate()
        self._lock = threading.Lock()
        self._history: deque[Measured] = deque(maxlen=_HISTORY)
        self._executor = ChunkExecutor(config, 0)
        self._reference = PoseReference(self.law, *robot.chain.pose(robot.home))
        self._angles = robot.home.copy()
        self._wanted = robot.home.copy()
        self._step = -1
        self._twist, self._grip, self._heard_ns = np.zeros(6), 0.0, -_HUMAN_SILENCE_NS
        self._intervention = 0

    @property
    def period_ns(self) -> int:
        """Length of a tick."""
        return self.runtime.gate.period_ns

    @property
    def horizon(self) -> int:
        """Control steps between two questions to the policy."""
        return self._config.execution_horizon

    @property
    def delay_steps(self) -> int:
        """Control steps that are past when an answer comes: the most of the last ones."""
        with self._lock:
            return self._executor.delay_steps

    @property
    def state(self) -> ArmState:
        """The arm's state."""
        return self.runtime.machine.state

    def joint_states(
        self, names: Sequence[str], positions: Sequence[float] | np.ndarray, stamp_ns: int
    ) -> Reason | None:
        """Note measured joints, in any order; the reason where they are not used."""
        known = dict(zip(names, positions, strict=False))
        own = {name: abs(known[name]) for name in self._fingers if name in known}
        with self._lock:
            self._open.update(own)
            if own and not any(name in known for name in self.robot.limits.names):
                return None  # the gripper's own message
            refused = self.runtime.joint_states(names, list(positions), stamp_ns)
            if refused is None:
                angles = np.array([known[name] for name in self.robot.limits.names], np.float64)
                self._history.append(Measured(stamp_ns, angles, self._two_fingers()))
        return refused

    def picture(self, camera: str, stamp_ns: int) -> None:
        """Note that a picture was taken."""
        with self._lock:
            self.runtime.watchdog.observed(camera, stamp_ns)

    def measured(self, stamp_ns: int) -> Measured | None:
        """The joints measured nearest to a time; None before the first."""
        with self._lock:
            return min(self._history, key=lambda seen: abs(seen.stamp_ns - stamp_ns), default=None)

    def heartbeat(self, now_ns: int) -> None:
        """Note a sign of life of the policy."""
        with self._lock:
            self.runtime.watchdog.heartbeat(now_ns)

    def due(self, now_ns: int) -> bool:
        """Whether the policy should be asked."""
        with self._lock:
            return self._executor.due(now_ns)

    def planned(self, now_ns: int) -> bool:
        """Whether a chunk reaches the step of `now_ns`."""
        with self._lock:
            return self._executor.action(now_ns) is not None

    def request(self, observed_ns: int) -> PrefixRequest:
        """Note that the policy is asked about an observation; what it must continue."""
        with self._lock:
            return self._executor.request(observed_ns)

    def chunk(self, chunk: Chunk, now_ns: int, infer_ms: float = 0.0) -> Receipt:
        """Take an answer of the policy."""
        with self._lock:
            self.runtime.watchdog.heartbeat(now_ns)
            receipt = self._executor.add(chunk, now_ns)
        self.events.emit(ChunkDecided(now_ns, chunk.observed_ns, chunk.actions, chunk.policy, infer_ms, receipt))
        return receipt

    def forget_chunks(self) -> None:
        """Drop what is planned: a new episode."""
        with self._lock:
            self._executor.clear()

    def fire(self, event: Event, now_ns: int, reason: str = "") -> Transition:
        """Apply an event to the state machine."""
        with self._lock:
            transition = self.runtime.fire(event, now_ns, reason)
            if transition.accepted:
                transition = self._entered(transition, now_ns)
        self._tell(transition)
        return transition

    def button(self, pressed: bool, now_ns: int) -> None:
        """Note the emergency stop's position."""
        with self._lock:
            transition = self.runtime.machine.button(pressed, now_ns)
        if transition is not None:
            self._tell(transition)

    def human(self, twist: np.ndarray, grip: float, now_ns: int, *, engaged: bool) -> Transition | None:
        """Note what a human's device asks.

        Args:
                grip: -1 opens, 1 closes, 0 stays.
            now_ns: When it came.
            engaged: Whether the human wants the arm.

        Returns:
            The takeover, where this is one.
        """
        if np.shape(twist) != (6,) or not np.isfinite(twist).all() or not np.isfinite(grip):
            return None
        with self._lock:
            self._twist, self._grip = np.asarray(twist, np.float64), float(np.clip(grip, -1, 1))
            self._heard_ns = now_ns if engaged else now_ns - _HUMAN_SILENCE_NS
            before = self.state
            transition = self.runtime.mux.human(self._human_command(now_ns), now_ns, engaged=engaged)
            if transition is not None and transition.accepted and before is not ArmState.RUNNING:
                self._restart_reference()
            number = self.runtime.mux.select(None, now_ns).number
        if transition is not None:
            self._tell(transition)
            if transition.accepted:
                self._intervention = number
                self.events.emit(Intervened(now_ns, number, began=True))
        return transition

    def release(self, now_ns: int) -> Transition:
        """The human lets go."""
        with self._lock:
            transition = self.runtime.mux.release(now_ns)
        self._tell(transition)
        return transition

    def tick(self, now_ns: int) -> Output:
        """Run one control tick."""
        with self._lock:
            before, taken = self.state, None
            command = None
            if before is ArmState.RUNNING:
                command, taken = self._policy(now_ns)
            elif before is ArmState.HUMAN:
                self._by_hand(now_ns)
            tick = self.runtime.tick(now_ns, command)
            output = self._output(tick, now_ns)
        if taken is not None:
            self.events.emit(taken)
        if tick.held is not None:
            self._tell(tick.held)
        if tick.state is not ArmState.IDLE:
            self.events.emit(CommandJudged(now_ns, tick, output.position, output.quaternion, output.width))
        return output

    def _policy(self, now_ns: int) -> tuple[Command | None, ActionTaken | None]:
        step, taken = self._executor.step_of(now_ns), None
        if step != self._step:
            self._step, action = step, self._executor.action(now_ns)
            taken = ActionTaken(now_ns, action)
            if action is None:
                self._reference.hold()
            else:
                self._reference.act(action.values)
        self._reference.advance(self._seconds)
        return self._command(now_ns, "policy"), taken

    def _by_hand(self, now_ns: int) -> None:
        """Move the reference as the human asks, or let it rest where the device is silent."""
        reference = self._reference
        if now_ns - self._heard_ns >= _HUMAN_SILENCE_NS:
            return
        position = reference.position + self._seconds * self._twist[:3]
        rotation = rotation_matrix(self._seconds * self._twist[3:]) @ reference.rotation
        grip = float(np.clip(reference.grip + self._grip * self.law.grip_rate * self._seconds, -1, 1))
        self._reference = PoseReference(self.law, position, rotation, grip)
        self.runtime.mux.human(self._human_command(now_ns), self._heard_ns, engaged=True)

    def _human_command(self, now_ns: int) -> Command:
        """The human's, or where no joints are found the present set point."""
        still = Command(now_ns, self.robot.limits.names, self._angles, np.zeros(len(self._angles)), "human")
        return self._command(now_ns, "human") or still

    @property
    def _seconds(self) -> float:
        return self.period_ns / 1e9

    def _command(self, now_ns: int, source: str) -> Command | None:
        """The joints that bring the tool nearest to the reference; None where there are none: the arm brakes."""
        found = self._ik.towards(self._wanted, self._reference.position, self._reference.rotation, self._seconds)
        if found is None:
            return None
        self._wanted = found[0]
        return Command(now_ns, self.robot.limits.names, found[0], found[1], source)

    def _output(self, tick: Tick, now_ns: int) -> Output:
        stop: list[Setpoint] = []
        if tick.setpoint is not None:
            self._angles = tick.setpoint.positions
            stop = self.runtime.gate.stop_path() if self._stops else []
            if tick.decision is None or np.abs(self._wanted - self._angles).max() > _LEASH:
                self._wanted = self._angles.copy()
                self._reference.moved_to(*self.robot.chain.pose(self._angles))
        position, rotation = self.robot.chain.pose(self._angles)
        return Output(tick, stop, position, quaternion_xyzw(rotation), self._width(tick, now_ns))

    def _width(self, tick: Tick, now_ns: int) -> float | None:
        """The gripper's set point; it keeps its grip while the arm holds."""
        limits, gate = self.robot.gripper, self._gripper
        if limits is None or gate is None or tick.setpoint is None:
            return None
        wanted = self._reference.width(float(limits.lower[0]), float(limits.upper[0]))
        if gate.at_rest and abs(wanted - self._open_width) < _SAME_WIDTH:
            return self._open_width
        decided = gate.decide(Command(now_ns, limits.names, [wanted]), now_ns)
        if decided.setpoint is not None:
            self._open_width = float(decided.setpoint.positions[0])
        return self._open_width

    def _entered(self, transition: Transition, now_ns: int) -> Transition:
        """What a new state needs: a reference at the arm's set point, an empty plan."""
        if transition.event is Event.ARM:
            self._start_gripper(now_ns)
            self._angles = self._history[-1].angles.copy()
        if transition.event in (Event.ARM, Event.START, Event.RESUME):
            self._restart_reference()
            self._executor.clear()
            self._step = -1
        return transition

    def _start_gripper(self, now_ns: int) -> None:
        if self._gripper is None or self.robot.gripper is None:
            return
        limits = self.robot.gripper
        width = sum(abs(finger) for finger in self._history[-1].fingers)
        span = 1e-3 * float(limits.upper[0] - limits.lower[0])
        inside = float(np.clip(width, limits.lower[0] + span, limits.upper[0] - span))
        self._gripper.start(np.array([inside]), now_ns)
        self._open_width = inside
        share = (inside - limits.lower[0]) / (limits.upper[0] - limits.lower[0])
        self._reference = PoseReference(self.law, self._reference.position, self._reference.rotation, 1 - 2 * share)

    def _restart_reference(self) -> None:
        self._wanted = self._angles.copy()
        self._reference = PoseReference(self.law, *self.robot.chain.pose(self._angles), self._reference.grip)

    def _two_fingers(self) -> tuple[float, float]:
        """As a policy reads them: the second one's position is negative."""
        found = list(self._open.values())
        if len(found) == 2:
            return found[0], -found[1]
        half = sum(found) / 2
        return half, -half

    def _tell(self, transition: Transition) -> None:
        self.events.emit(StateChanged(transition.time_ns, transition))
        if transition.accepted and transition.before is ArmState.HUMAN:
            self.events.emit(Intervened(transition.time_ns, self._intervention, began=False))
