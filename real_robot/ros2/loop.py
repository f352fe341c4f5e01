"""The control loop without ROS: measured joints and chunks in, one set point a tick out. One lock, no clock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from embodied_rl.real_robot.core.cartesian import AS_TRAINED, ControlLaw, quaternion_xyzw
from embodied_rl.real_robot.core.executor import (
    Chunk,
    ChunkExecutor,
    ExecutorConfig,
    PrefixRequest,
    Receipt,
    StepAction,
)
from embodied_rl.real_robot.core.gate import Command, Reason, Setpoint
from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.real_robot.core.pace import Pace
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.core.runtime import ArmRuntime, Tick, repeated
from embodied_rl.real_robot.core.states import ArmState, Event, Transition
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.ros2.events import (
    ActionTaken,
    ChunkDecided,
    CommandJudged,
    Events,
    Intervened,
    StateChanged,
)
from embodied_rl.real_robot.ros2.joints import JointHistory, JointReading
from embodied_rl.real_robot.ros2.output import Output
from embodied_rl.real_robot.ros2.target import Target
from embodied_rl.real_robot.ros2.two_arm_target import TwoArmTarget

_HUMAN_SILENCE_NS = 100_000_000
MOST_TWIST = 10.0
"""No hand asks a tool for more, m/s and rad/s."""
_SILENCES_NS = 4_000_000_000
"""For how long a silence of the policy is remembered for the check before arming."""
_GOES_ON = (Event.ARM, Event.START, Event.RESUME, Event.TAKEOVER)


class ControlLoop:
    """Executor, target and the core's runtime in one, behind one lock.

    Args:
        robot: The arm, or two under one gate.
        cameras: Names of its cameras.
        config: How chunks become actions.
        law: The controller of training.
        fingers: Joint names whose absolute positions add up to the gripper's width.
        stops: Whether set points come with the stop after them.
        base: The arm's base in the world of training, along whose axes actions point.
        split: Of two arms, how many of the fingers are the first gripper's.

    Attributes:
        events: What happens, for whoever subscribes.
        leaving: Whether the arm is to come to rest for good: only a stop, a hold or a disarm is done then.

    Example:
        >>> loop = ControlLoop(robot, ["wrist"], config)
        >>> loop.joint_states(names, angles, now)
        >>> loop.fire(Event.ARM, now)
        >>> loop.tick(now).tick.setpoint
    """

    def __init__(
        self,
        robot: Robot | TwoArmRobot,
        cameras: Sequence[str],
        config: ExecutorConfig,
        law: ControlLaw | None = None,
        fingers: Sequence[str] = (),
        stops: bool = True,
        base: Origin = AS_TRAINED,
        split: int | None = None,
    ) -> None:
        self.robot, self.law = robot, law or ControlLaw()
        self.events, self.leaving = Events(), False
        self.runtime = ArmRuntime(robot, cameras, stops)
        self._config, self._stops = config, stops
        self._joints, self._fingers = JointHistory(robot.limits.names, fingers, split), tuple(fingers)
        self._target = (
            TwoArmTarget(robot)
            if isinstance(robot, TwoArmRobot)
            else Target(robot, self.law, self.period_ns / 1e9, base)
        )
        self._lock = threading.Lock()
        self._executor = ChunkExecutor(config, 0)
        self._angles = robot.home.copy()
        self._step, self._acts = -1, False
        self._queued: np.ndarray | None = None
        self._twist, self._grip, self._heard_ns = np.zeros(6), 0.0, -_HUMAN_SILENCE_NS
        self._intervention = 0
        self._silences, self._silent = deque[int](maxlen=100), True

    @property
    def period_ns(self) -> int:
        """Length of a tick."""
        return self.runtime.gate.period_ns

    @property
    def horizon(self) -> int:
        """Control steps between two questions to the policy."""
        return self._config.execution_horizon

    @property
    def asks_seldom(self) -> bool:
        """Whether so much time lies between two questions that it would count as the policy's silence."""
        return self.horizon * self._config.period_ns >= self.robot.watchdog.policy_silence_s * 1e9

    @property
    def delay_steps(self) -> int:
        """Control steps that are past when an answer comes: see `ChunkExecutor.delay_steps`."""
        with self._lock:
            return self._executor.delay_steps

    @property
    def pace(self) -> Pace:
        """Whether the last answers came in time."""
        with self._lock:
            return self._executor.pace

    def policy_silent_s(self, now_ns: int) -> float | None:
        """Time since the policy's last sign of life, s; None before the first."""
        with self._lock:
            return self.runtime.watchdog.age_s(self.runtime.watchdog.POLICY, now_ns)

    def silences(self, now_ns: int) -> int:
        """How often the policy's silence became a fault in the last 4 s: an arm that runs holds at the first."""
        with self._lock:
            return sum(now_ns - began < _SILENCES_NS for began in self._silences)

    @property
    def state(self) -> ArmState:
        """The arm's state."""
        return self.runtime.machine.state

    def joint_states(
        self, names: Sequence[str], positions: Sequence[float] | np.ndarray, stamp_ns: int, now_ns: int | None = None
    ) -> Reason | None:
        """Note measured joints, in any order; the reason where they are not used. `now_ns`: see `ArmRuntime`."""
        if twice := repeated(names, self._fingers):
            return Reason("names", twice)
        known = dict(zip(names, positions, strict=False))
        with self._lock:
            if self._joints.fingers_alone(known):
                return None
            refused = self.runtime.joint_states(names, list(positions), stamp_ns, now_ns)
            if refused is None:
                self._joints.add(known, stamp_ns)
        return refused

    def image(self, camera: str, stamp_ns: int, now_ns: int | None = None) -> str:
        """Note that a picture was taken; why it must not be used, see `Watchdog.observed`."""
        with self._lock:
            return self.runtime.watchdog.observed(camera, stamp_ns, now_ns)

    def measured(self, stamp_ns: int) -> JointReading | None:
        """The joints measured nearest to a time; None before the first."""
        with self._lock:
            return self._joints.nearest(stamp_ns)

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

    def chunk(self, chunk: Chunk, now_ns: int, infer_ms: float = 0.0, frozen: int = 0) -> Receipt:
        """Take an answer of the policy; `infer_ms` and `frozen` are for the record.

        One that an arm which moves could not use is no sign of life.
        """
        with self._lock:
            receipt = self._executor.add(chunk, now_ns)
            if receipt.in_time:
                self.runtime.watchdog.heartbeat(now_ns)
        decided = ChunkDecided(now_ns, chunk.observed_ns, chunk.actions, chunk.policy, infer_ms, receipt, frozen)
        self.events.emit(decided)
        return receipt

    def queue(self, action: np.ndarray) -> None:
        """Do this action [7] in the next control step whatever is planned: for an environment over the bridge."""
        with self._lock:
            self._queued = action

    def forget_chunks(self) -> None:
        """Drop what is planned: a new episode."""
        with self._lock:
            self._executor.clear()

    def fire(self, event: Event, now_ns: int, reason: str = "") -> Transition:
        """Apply an event to the state machine."""
        with self._lock:
            refusal = self._refusal(event)
            if refusal:
                transition = Transition(now_ns, event, self.state, self.state, refusal, accepted=False)
            else:
                transition = self.runtime.fire(event, now_ns, reason)
            if transition.accepted:
                self._entered(event, now_ns)
        self._tell(transition)
        return transition

    def moving(self) -> str:
        """Which joint is not at rest, and what to do; empty where all are."""
        with self._lock:
            return self._joints.moving()

    def button(self, pressed: bool, now_ns: int, key: bytes = b"", name: str = "", number: int | None = None) -> bool:
        """Note what a publisher says of its emergency stop's button, see `Buttons.heard`; whether it moved."""
        with self._lock:
            moved, transition = self.runtime.button(pressed, now_ns, key, name, number)
        if transition is not None:
            self._tell(transition)
        return moved

    def button_publishers(self, publishers: Mapping[bytes, str], now_ns: int) -> None:
        """Note who publishes the emergency stop now, see `Buttons.publish`."""
        with self._lock:
            self.runtime.buttons.publish(publishers, now_ns)

    def note(self, kind: str, detail: str, source: str = "") -> None:
        """Note what somebody else looks after, see `Watchdog.note`."""
        with self._lock:
            self.runtime.watchdog.note(kind, detail, source)

    def human(self, twist: np.ndarray, grip: float, now_ns: int, *, engaged: bool) -> Transition | None:
        """Note what a human's device asks.

        Args:
            twist: The tool's velocity in the base frame [6], m/s and rad/s; one that is not finite or beyond
                `MOST_TWIST` is left out.
            grip: -1 opens, 1 closes, 0 stays.
            now_ns: When it came.
            engaged: Whether the human wants the arm.

        Returns:
            The takeover, where the switch was pressed just now; one that is still held takes nothing. No twist takes
            two arms.
        """
        if (
            isinstance(self._target, TwoArmTarget)
            or np.shape(twist) != (6,)
            or not (np.abs(twist) <= MOST_TWIST).all()
            or not np.isfinite(grip)
        ):
            return None
        with self._lock:
            self._twist, self._grip = np.asarray(twist, np.float64), float(np.clip(grip, -1, 1))
            self._heard_ns = now_ns if engaged else now_ns - _HUMAN_SILENCE_NS
            before = self.state
            if self.leaving and before is not ArmState.HUMAN:
                return None
            transition = self.runtime.mux.human(self._human_command(now_ns), now_ns, engaged=engaged)
            if transition is not None and transition.accepted and before is not ArmState.RUNNING:
                self.runtime.settle()
                self._target.rest(self.runtime.gate.positions)
            number = self.runtime.mux.select(None, now_ns).number
        if transition is not None:
            self._tell(transition)
            if transition.accepted:
                self._intervention = number
                self.events.emit(Intervened(now_ns, number, began=True))
        return transition

    def silent(self, now_ns: int) -> None:
        """Let the arm rest where a human's device is not to be believed: it keeps the arm, and has not let go."""
        with self._lock:
            self._heard_ns = now_ns - _HUMAN_SILENCE_NS
            self.runtime.mux.silent()

    def release(self, now_ns: int) -> Transition:
        """The human gives the arm back."""
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
            self._executor.begin(now_ns, still=self._stands(before))
            silent = any(fault.kind == "policy" for fault in tick.faults)
            if silent and not self._silent:
                self._silences.append(now_ns)
            self._silent = silent
            output = self._output(tick, now_ns)
        if taken is not None:
            self.events.emit(taken)
        if tick.held is not None:
            self._tell(tick.held)
        if tick.state is not ArmState.IDLE:
            self.events.emit(CommandJudged(now_ns, tick, output.position, output.quaternion, output.width))
        return output

    def _refusal(self, event: Event) -> str:
        """Why an event is not even tried; empty where it is."""
        if self.leaving and event in _GOES_ON:
            return f"{event} is not possible: the bridge is being deactivated"
        return self._joints.moving() if event is Event.ARM and self.state is ArmState.IDLE else ""

    def _policy(self, now_ns: int) -> tuple[Command | None, ActionTaken | None]:
        step, taken = self._executor.step_of(now_ns), None
        if step != self._step:
            self._step, action = step, self._executor.action(now_ns)
            if self._queued is not None:
                action, self._queued = StepAction(step, self._queued, ()), None
            taken, self._acts = ActionTaken(now_ns, action), action is not None
            self._target.act(None if action is None else action.values)
        self._target.advance()
        return self._target.command(now_ns, "policy"), taken

    def _stands(self, state: ArmState) -> bool:
        """Whether the arm stands still under the bridge's command; what moves it else is not known."""
        resting = (state is ArmState.RUNNING and not self._acts) or state in (ArmState.ARMED, ArmState.HOLDING)
        return resting and self.runtime.machine.sends and self.runtime.gate.at_rest

    def _by_hand(self, now_ns: int) -> None:
        """Move as the human asks, or let the arm rest where the device is silent."""
        if now_ns - self._heard_ns < _HUMAN_SILENCE_NS and not isinstance(self._target, TwoArmTarget):
            self._target.by_hand(self._twist, self._grip)
            self.runtime.mux.human(self._human_command(now_ns), self._heard_ns, engaged=True)

    def _human_command(self, now_ns: int) -> Command:
        """The human's, or where no joints are found the present set point."""
        still = Command(now_ns, self.robot.limits.names, self._angles, np.zeros(len(self._angles)), "human")
        return self._target.command(now_ns, "human") or still

    def _output(self, tick: Tick, now_ns: int) -> Output:
        stop, width, widths = list[Setpoint](), None, ()
        if tick.setpoint is not None:
            self._angles = tick.setpoint.positions
            stop = self.runtime.gate.stop_path() if self._stops else []
            self._target.reached(self._angles, braked=tick.decision is None)
            if isinstance(self._target, TwoArmTarget):
                widths = self._target.widths(now_ns)
            else:
                width = self._target.width(now_ns)  # it keeps its grip while the arm holds
        if isinstance(self.robot, TwoArmRobot):
            position, quaternion = self.robot.tools(self._angles)
            return Output(tick, stop, position, quaternion, None, widths)
        position, rotation = self.robot.chain.pose(self._angles)
        return Output(tick, stop, position, quaternion_xyzw(rotation), width)

    def _entered(self, event: Event, now_ns: int) -> None:
        """What a new state needs: a target at the arm's set point, an empty plan."""
        if event is Event.ARM:
            start_ns = now_ns - now_ns % self.period_ns  # as the arm's gate
            fingers = self._joints.last.fingers
            if isinstance(self._target, TwoArmTarget):
                self._target.start_grippers(fingers, start_ns)
            else:
                self._target.start_gripper(sum(map(abs, fingers)), start_ns)
        if event in (Event.ARM, Event.START, Event.RESUME):
            self._angles = self.runtime.gate.positions
            self._target.rest(self._angles)
            self._executor.clear()
            self._step, self._acts, self._queued = -1, False, None

    def _tell(self, transition: Transition) -> None:
        self.events.emit(StateChanged(transition.time_ns, transition))
        if transition.accepted and transition.before is ArmState.HUMAN:
            self.events.emit(Intervened(transition.time_ns, self._intervention, began=False))
