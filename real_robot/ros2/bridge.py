"""The bridge: a ROS 2 node between an arm's topics and the control loop.

Three kinds of threads: the executor's runs callbacks, the control thread ticks at the arm's rate and publishes, and
the policy's wait for the server. They meet in `ControlLoop`, behind its lock.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2.adapters import ArmAdapter, GripperAdapter, arm_adapter, gripper_adapter
from embodied_rl.real_robot.ros2.asking import Client
from embodied_rl.real_robot.ros2.episodes import EpisodeBook
from embodied_rl.real_robot.ros2.inputs import Inputs
from embodied_rl.real_robot.ros2.loop import ControlLoop, Output
from embodied_rl.real_robot.ros2.operator import Operator
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.parameters import declare_parameters
from embodied_rl.real_robot.ros2.recording import BridgeRecording
from embodied_rl.real_robot.ros2.report import Reporter
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.ros2.station import Station, make_station

_STOP_S = 0.3


class Bridge:
    """One arm on ROS 2, driven by a policy server.

    Args:
        session: The node.
        options: How it runs.
        clients: Connections to the policy server; each may have a question on its way.
        metadata: What is known of the policy; None: what its server says.

    Attributes:
        station: Its parts.

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
        self.station: Station = make_station(session, options, clients, metadata)
        declare_parameters(session.node, options)
        self._recording = BridgeRecording(self.station, Path(options.record)) if options.record else None
        self._inputs = Inputs(self.station, EpisodeBook(self.loop, self.station.asking))
        self._operator = Operator(self.station, self._inputs)
        self._reporter = Reporter(self.station, self._inputs, self._recording)
        self._arm: ArmAdapter | None = None
        self._gripper: GripperAdapter | None = None
        config = self.station.config
        if options.mode == "live":
            self._arm = arm_adapter(session.node, config.arm, self.station.robot)
            if config.gripper is not None:
                self._gripper = gripper_adapter(session.node, config.gripper)
        self._healthy_ns = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._control, name="control", daemon=True)
        self._error: BaseException | None = None

    @property
    def loop(self) -> ControlLoop:
        """The control loop; subscribe to `loop.events` for what happens."""
        return self.station.loop

    @property
    def error(self) -> BaseException | None:
        """What ended the control or the callback thread; None while both run."""
        return self._error or self.station.session.error

    def fire(self, event: Event) -> str:
        """Fire an event as somebody's wish, as the services do: why it was refused; empty where it was done."""
        return self._operator.fire(event)

    def start(self) -> None:
        """Run callbacks, ask the policy and tick from now on."""
        self.station.session.start()
        self.station.asking.start()
        self._thread.start()

    def close(self) -> None:
        """Hold, then end: control thread, policy threads, recording. The session is closed by whoever made it.

        Raises:
            UserError: The recording is not complete.
        """
        if self.loop.state in (ArmState.RUNNING, ArmState.HUMAN):
            self.loop.fire(Event.HOLD, self.station.clock.now_ns(), "the bridge ends")
            self._stopping.wait(_STOP_S)  # the stop's set points still go out
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)
        self.station.asking.close()
        if self._recording is not None:
            self._recording.close()

    def _control(self) -> None:
        try:
            self._tick_on_time()
        except BaseException as error:
            self._error = error
            raise

    def _tick_on_time(self) -> None:
        clock, period_ns = self.station.clock, self.loop.period_ns
        due_ns = clock.now_ns()
        while not self._stopping.is_set():
            clock.sleep_until(due_ns)
            now_ns = clock.now_ns()
            output = self.loop.tick(now_ns)
            self._send(output)
            self._reporter.tick(output, now_ns)
            self._resume_alone(output, now_ns)
            due_ns += period_ns * (1 + round((now_ns - due_ns) / period_ns))  # a missed tick is not made up for

    def _send(self, output: Output) -> None:
        setpoint = output.tick.setpoint
        if setpoint is None or self.loop.state is ArmState.ESTOPPED:  # the button may have come during the tick
            return
        if self.station.options.mode == "dry_run":
            self._inputs.pretend(setpoint.positions)
        if self._arm is not None:
            ros_ns = self.station.clock.ros_ns()
            self._arm.send(output, ros_ns)
            if self._gripper is not None and output.width is not None:
                self._gripper.send(output.width, ros_ns)

    def _resume_alone(self, output: Output, now_ns: int) -> None:
        resume_s = self.station.options.resume_s
        if output.tick.state is not ArmState.HOLDING or output.tick.faults or resume_s is None:
            self._healthy_ns = now_ns
        elif now_ns - self._healthy_ns >= resume_s * 1e9 and self._operator.wants_to_run:
            self.loop.fire(Event.RESUME, now_ns, "no faults any more")
