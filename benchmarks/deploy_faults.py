"""Fault drills on a twin: something is stopped, killed or unplugged while the arm moves, and the arm is watched."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.deploy.episodes import patiently, to_idle
from embodied_rl.real_robot.deploy.launcher import Launcher
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.config import load_ros_config

MOVING, STILL = 0.10, 0.03
"""Largest joint speed, rad/s, from which the arm counts as moving, and up to which it counts as still."""
_WAIT_S, _HELD_S, _WATCHED_NS = 20.0, 2.0, 1_200_000_000
_WATCHED_ALONE_NS = 3_000_000_000
"""How long the arm is watched where no bridge says that it holds."""


@dataclass(frozen=True)
class Drill:
    """What a fault led to, in the twin's seconds from the fault.

    Args:
        fault: Its name.
        state: The bridge's state afterwards; empty where the bridge is gone.
        state_s: When that state was heard; None where none was.
        still_s: When the arm came to rest; None where it is not seen any more.
        last_command_s: When the last set point was heard; negative: before the fault.
    """

    fault: str
    state: str
    state_s: float | None
    still_s: float | None
    last_command_s: float


class Watch:
    """Joint speeds and set points as another process hears them.

    Args:
        launcher: Not opened yet.
        clock: The launcher's.
    """

    def __init__(self, launcher: Launcher, clock: Clock) -> None:
        from sensor_msgs.msg import JointState
        from trajectory_msgs.msg import JointTrajectory

        self._clock, config = clock, load_ros_config("twin")
        self.speeds: list[tuple[int, float]] = []
        self.commands: list[int] = []
        node = launcher.session.node
        node.create_subscription(JointState, config.joint_states, self._joints, qos.sensor(50))
        node.create_subscription(JointTrajectory, config.arm.topic, self._command, qos.event())

    @property
    def speed(self) -> float:
        """The fastest joint's, rad/s."""
        return self.speeds[-1][1] if self.speeds else 0.0

    def still_s(self, since_ns: int) -> float | None:
        """When the arm was last seen moving, s after `since_ns`; None where it is not seen after that."""
        after = [(heard, speed) for heard, speed in self.speeds if heard >= since_ns]
        if not after:
            return None
        moving = [heard for heard, speed in after if speed > STILL]
        return (max(moving, default=since_ns) - since_ns) / 1e9

    def last_command_s(self, since_ns: int) -> float:
        """When the last set point was heard, s after `since_ns`."""
        return (self.commands[-1] - since_ns) / 1e9

    def _joints(self, message: Any) -> None:
        self.speeds.append((self._clock.now_ns(), float(np.abs(np.array(message.velocity[:7])).max())))

    def _command(self, message: Any) -> None:
        self.commands.append(self._clock.now_ns())


class Drills:
    """Runs drills on a launcher whose policy keeps the arm moving.

    Args:
        launcher: Opened by this, with a bridge that does not resume by itself.
        task: Of the twin.
        speed: The launcher's, see `Clock`.

    Example:
        >>> Drills(launcher, task).drop_camera().state
        'holding'
    """

    def __init__(self, launcher: Launcher, task: str, speed: float = 1.0) -> None:
        self._launcher, self.task, self._clock = launcher, task, Clock(speed)
        self.watch = Watch(launcher, self._clock)
        launcher.open()

    def emergency_stop(self) -> Drill:
        """Press the button; afterwards it is let out and reset."""
        drill = self._drill("emergency stop", self._launcher.bridge.press, "e-stopped")
        done, words = self._launcher.bridge.call("reset")
        if done or "pressed" not in words:
            raise UserError(f"a reset with the button pressed was not refused: {words}")
        self._launcher.bridge.press(False)
        patiently(self._launcher.bridge, "reset")
        return drill

    def drop_camera(self) -> Drill:
        """One camera sends nothing any more; afterwards it does, and the arm is resumed."""
        assert self._launcher.twin is not None
        twin = self._launcher.twin
        drill = self._drill("camera loss", lambda: twin.drop_cameras("agentview"), "holding")
        twin.drop_cameras()
        self._recover()
        return drill

    def stop(self, name: str) -> Drill:
        """SIGSTOP a process; afterwards it goes on, and the arm is resumed."""
        process = self._launcher.processes[name]
        drill = self._drill(f"SIGSTOP {name}", lambda: process.signal(signal.SIGSTOP), "holding")
        process.signal(signal.SIGCONT)
        self._recover()
        return drill

    def kill(self, name: str) -> Drill:
        """kill -9 a process; afterwards a new one takes its place, except the bridge."""
        process, launcher = self._launcher.processes[name], self._launcher
        wanted = "" if name == "bridge" else "holding"
        drill = self._drill(f"kill -9 {name}", lambda: process.signal(signal.SIGKILL), wanted)
        process.close()
        if name == "server":
            launcher.start_server(launcher.port)
            self._recover()
        if name == "twin":
            launcher.start_twin()
            to_idle(launcher.bridge)
        return drill

    def move(self) -> None:
        """Bring the arm to motion, from any state but e-stopped."""
        bridge, twin = self._launcher.bridge, self._launcher.twin
        assert twin is not None
        to_idle(bridge)
        bridge.instruct(twin.begin(self.task, 50, 0))
        patiently(bridge, "arm")
        patiently(bridge, "start")
        for _ in range(round(_WAIT_S / _HELD_S)):
            if bridge.wait(lambda: self.watch.speed > MOVING and bridge.state == "running", _HELD_S):
                return
            if bridge.state == "holding":  # a busy computer, before the fault
                patiently(bridge, "resume")
        raise UserError(f"the arm does not move; the bridge is {bridge.state}, faults {bridge.status['faults']}")

    def _drill(self, fault: str, inject: Callable[[], object], wanted: str) -> Drill:
        bridge, clock = self._launcher.bridge, self._clock
        self.move()
        seen = len(bridge.transitions)
        inject()
        began_ns = clock.now_ns()
        bridge.wait(lambda: bool(wanted) and bridge.state == wanted, _WAIT_S if wanted else 3.0)
        watched_ns = _WATCHED_ALONE_NS if fault.endswith(" bridge") else _WATCHED_NS
        clock.sleep_until(max(began_ns + watched_ns, clock.now_ns() + 500_000_000))
        heard = [said for said in bridge.transitions[seen:] if said["state"] == wanted and said["accepted"]]
        state_s = (int(heard[0]["heard_ns"] * clock.speed) - began_ns) / 1e9 if heard else None
        still_s, last_s = self.watch.still_s(began_ns), self.watch.last_command_s(began_ns)
        return Drill(fault, wanted and bridge.state, state_s, still_s, last_s)

    def _recover(self) -> None:
        """Resume once the fault is gone: an arm that holds goes on when somebody says so."""
        patiently(self._launcher.bridge, "resume")
        if not self._launcher.bridge.wait_state("running", _WAIT_S):
            raise UserError("the arm does not go on after the fault is gone")
