"""The bridge: a ROS 2 node between an arm's topics and the control loop.

Threads: one hears the emergency stop and joint states, one decodes pictures, one runs all other callbacks, the control
thread ticks at the arm's rate and publishes, and the policy's wait for the server. They meet in `ControlLoop`, behind
its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.real_robot.core.runtime import first_tick
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.ros2.adapters import ArmAdapter, GripperAdapter, arm_adapter, gripper_adapter
from embodied_rl.real_robot.ros2.context import BridgeContext, make_context
from embodied_rl.real_robot.ros2.episodes import EpisodeBook
from embodied_rl.real_robot.ros2.inference_client import Client
from embodied_rl.real_robot.ros2.inputs import Inputs
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.operator import Operator
from embodied_rl.real_robot.ros2.options import JOIN_S, REST_S, BridgeOptions
from embodied_rl.real_robot.ros2.output import Output, each_arms
from embodied_rl.real_robot.ros2.parameters import declare_parameters
from embodied_rl.real_robot.ros2.preflight import Check, checks
from embodied_rl.real_robot.ros2.recording import BridgeRecording
from embodied_rl.real_robot.ros2.report import Reporter
from embodied_rl.real_robot.ros2.session import Session

_LOOK_S = 0.01


class Bridge:
    """One arm on ROS 2, or two under one gate, driven by a policy server.

    Args:
        session: The node.
        options: How it runs.
        clients: Connections to the policy server; each may have a question on its way.
        metadata: What is known of the policy; None: what its server says.

    Attributes:
        context: Its parts.

    Raises:
        UserError: The policy does not fit the arm's cameras, its actions are no Cartesian deltas, or the recording
            cannot be written.

    Example:
        >>> with Session("embodied_rl") as session:
        ...     bridge = Bridge(session, BridgeOptions(robot="fr3"), [PolicyClient("gpu-box", 8000)])
        ...     bridge.start()
    """

    def __init__(
        self,
        session: Session,
        options: BridgeOptions,
        clients: Sequence[Client],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.context: BridgeContext = make_context(session, options, clients, metadata)
        declare_parameters(session.node, options)
        self._recording = BridgeRecording(self.context, Path(options.record)) if options.record else None
        self._episodes = EpisodeBook(self.loop, self.context.inference)
        self._inputs = Inputs(self.context, self._episodes)
        self._operator = Operator(self.context, self._inputs)
        self._reporter = Reporter(self.context, self._inputs, self._recording)
        self._arms: list[ArmAdapter] = []
        self._grippers: list[GripperAdapter] = []
        config, robot = self.context.config, self.context.robot
        if options.mode == "live":
            each = robot.arms if isinstance(robot, TwoArmRobot) else (robot,)
            self._arms = [arm_adapter(session.node, topic, arm) for topic, arm in zip(config.arms, each, strict=True)]
            self._grippers = [gripper_adapter(session.node, gripper) for gripper in config.grippers]
        self._healthy_ns = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        session.start_beside()

    @property
    def loop(self) -> ControlLoop:
        """The control loop; subscribe to `loop.events` for what happens."""
        return self.context.loop

    @property
    def error(self) -> BaseException | None:
        """What ended the control, a policy's or the callback thread; None while all run."""
        return self._error or self.context.inference.error or self.context.session.error

    def fire(self, event: Event) -> str:
        """Fire an event as somebody's wish, as the services do: why it was refused; empty where it was done."""
        return self._operator.fire(event)

    def release(self) -> str:
        """A person gives the arm back, as the service does: why that was refused; empty where it was done."""
        return self._operator.release()

    def preflight(self) -> list[Check]:
        """What must hold before the arm is armed, as the service finds it."""
        return checks(self.context, self._inputs)

    def label(self, outcome: str) -> None:
        """Say how the running or the last episode ended, such as 'success', for the recording."""
        self._episodes.say(outcome, self.context.clock.now_ns())

    def start(self) -> None:
        """Run callbacks, and be active."""
        self.context.session.start()
        self.activate()

    def activate(self) -> None:
        """Ask the policy and tick from now on: the arm may be armed."""
        self.loop.leaving = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._control, args=(self._stopping,), name="control", daemon=True)
        self.context.inference.start()
        self._thread.start()
        self._operator.active = True

    def deactivate(self) -> None:
        """Bring the arm to rest and disarm it, then end the control thread: nothing is sent until `activate`.

        An emergency stop stays latched; an arm that does not come to rest in time is e-stopped.
        """
        self._operator.active = self._operator.wants_to_run = False
        loop, clock = self.loop, self.context.clock
        loop.leaving = True
        if loop.state in (ArmState.RUNNING, ArmState.HUMAN):
            loop.fire(Event.HOLD, clock.now_ns(), "the bridge is deactivated")
        until_ns = clock.now_ns() + round(REST_S * 1e9)
        while self._moves and clock.now_ns() < until_ns:
            self._stopping.wait(_LOOK_S)  # the stop's set points still go out
        if loop.state not in (ArmState.IDLE, ArmState.ESTOPPED):
            disarmed = loop.fire(Event.DISARM, clock.now_ns(), "the bridge is deactivated").accepted
            if not disarmed:
                loop.fire(Event.ESTOP, clock.now_ns(), "it did not come to rest before the bridge was deactivated")
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=JOIN_S)
        self.context.inference.pause()

    def close(self) -> None:
        """Deactivate, then end: policy threads, recording. The session is closed by whoever made it.

        Raises:
            UserError: The recording is not complete.
        """
        self.deactivate()
        self.context.inference.close()
        if self._recording is not None:
            self._recording.close()

    @property
    def _moves(self) -> bool:
        """Whether set points are sent that do not stand still."""
        runtime = self.loop.runtime
        ticks = self._thread is not None and self._thread.is_alive()
        return ticks and runtime.machine.sends and not runtime.gate.at_rest

    def _control(self, stopping: threading.Event) -> None:
        try:
            self._tick_on_time(stopping)
        except BaseException as error:
            self._error = error
            raise

    def _tick_on_time(self, stopping: threading.Event) -> None:
        clock, period_ns = self.context.clock, self.loop.period_ns
        due_ns = first_tick(clock.now_ns(), period_ns)
        while not stopping.is_set():
            clock.sleep_until(due_ns)
            now_ns = clock.now_ns()
            output = self.loop.tick(now_ns)
            self._send(output)
            self._reporter.tick(output, now_ns)
            self._resume_alone(output, now_ns)
            due_ns += period_ns * (1 + round((now_ns - due_ns) / period_ns))  # a missed tick is not made up for

    def _send(self, output: Output) -> None:
        runtime = self.loop.runtime
        if self.context.options.mode == "dry_run" and runtime.machine.sends:
            self._inputs.pretend(runtime.gate.positions)
        if output.tick.setpoint is None or self.loop.state is ArmState.ESTOPPED:  # the button may have come just now
            return
        robot, ros_ns = self.context.robot, self.context.clock.ros_ns()
        outputs = each_arms(output, robot) if isinstance(robot, TwoArmRobot) else (output,)
        for arm, own in zip(self._arms, outputs, strict=False):  # none in shadow and dry run
            arm.send(own, ros_ns)
        for gripper, own in zip(self._grippers, outputs, strict=False):
            if own.width is not None:
                gripper.send(own.width, ros_ns)

    def _resume_alone(self, output: Output, now_ns: int) -> None:
        resume_s, waits = self.context.options.resume_s, bool(self.context.alarm.asks)  # for a person, also on a twin
        begins = output.tick.state is not ArmState.HOLDING or output.tick.held is not None
        if begins or output.tick.faults or resume_s is None or waits:
            self._healthy_ns = now_ns
        elif now_ns - self._healthy_ns >= resume_s * 1e9 and self._operator.wants_to_run:
            self.loop.fire(Event.RESUME, now_ns, "no faults any more")
