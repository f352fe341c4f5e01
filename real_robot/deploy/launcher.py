"""Starts server, twin and bridge as processes, and the node that talks to them."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from embodied_rl.errors import UserError
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.deploy.remote import BridgeRemote, TwinRemote
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.options import PANEL, BridgeOptions, Mode
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.options import TwinOptions

_READY_S = 300.0
"""A first start compiles kernels."""
_HEARD_S = 30.0
_LOSES = "the recording may lack its end, look at the arm"


@dataclass(frozen=True, kw_only=True)
class LauncherConfig:
    """What is started.

    Args:
        environment: Of every process: `ros_environment`.
        server: Module and arguments of the policy server, which says 'ready: ws://HOST:PORT'; None: it runs already.
        bridge: The bridge's options; where a server is started, its port is filled in.
        twin: The twin's; None for a real arm.
    """

    environment: Mapping[str, str]
    server: Sequence[str] | None
    bridge: BridgeOptions
    twin: TwinOptions | None


class Launcher:
    """Starts all of them and ends them in order.

    Attributes:
        processes: By name: server, twin, bridge.
        bridge: The bridge from outside.
        twin: The twin from outside; None for a real arm.

    Example:
        >>> with Launcher(config) as launcher:
        ...     run_episode(launcher.bridge, launcher.twin, task, state=50, horizon_s=7.5)
    """

    def __init__(self, config: LauncherConfig) -> None:
        self.config = config
        self.processes: dict[str, Process] = {}
        self.twin: TwinRemote | None = None
        self._options = config.bridge
        try:
            if config.server is not None:
                self.start_server(config.bridge.port if config.bridge.port else 0)
            if config.twin is not None:
                self.start_twin()
            self.start_bridge()
            self.session = Session(PANEL)
        except BaseException:
            self._end_processes()
            raise
        self.bridge = BridgeRemote(self.session, load_ros_config(config.bridge.robot).emergency_stop)
        if config.twin is not None:
            self.twin = TwinRemote(self.session)

    def start_server(self, port: int) -> None:
        """Start the policy server at a port, 0 for a free one, and wait until it is ready."""
        assert self.config.server is not None
        module, *arguments = self.config.server
        words = [*arguments, "--port", str(port)]
        process = Process("policy server", module, words, self.config.environment, r"ready: ws://.*:(\d+)")
        self.processes["server"] = process
        self._options = replace(self._options, port=int(process.wait_ready(_READY_S)[1]))

    def start_twin(self) -> None:
        """Start the twin, and wait until it is ready."""
        assert self.config.twin is not None
        self._start("twin", "embodied_rl.real_robot.twin", self.config.twin.to_json())

    def start_bridge(self, mode: Mode | None = None, *, autostart: bool = True) -> None:
        """Start the bridge, in another mode than before if one is given, and wait until it is ready.

        Without `autostart` it waits for somebody who configures and activates it.

        One bridge writes the recording: a later one, in the place of one that was killed, has none.
        """
        if "bridge" in self.processes:
            self._options = replace(self._options, record=None)
        if mode is not None:
            self._options = replace(self._options, mode=mode)
        options = replace(self._options, autostart=autostart)
        self._start("bridge", "embodied_rl.real_robot.ros2", options.to_json(), options.ending_s, _LOSES)

    @property
    def port(self) -> int:
        """The policy server's."""
        return self._options.port

    def open(self) -> None:
        """Hear the bridge and the twin; UserError where they say nothing."""
        self.session.start()
        if not self.bridge.wait(lambda: bool(self.bridge.status), _HEARD_S):
            raise UserError(f"the bridge is not heard: {self.processes['bridge'].last_line}")
        if self.twin is not None and not self.twin.wait(lambda: bool(self.twin and self.twin.state), _HEARD_S):
            raise UserError(f"the twin is not heard: {self.processes['twin'].last_line}")

    def ended(self) -> str:
        """The process that has ended and what it said last, or why nothing is heard any more; empty while all run."""
        if self.session.error is not None:
            return f"deploy hears nothing any more: {type(self.session.error).__name__}: {self.session.error}"
        for name, process in self.processes.items():
            if not process.running:
                return f"the {name} ended: {process.last_line}"
        return ""

    def close(self) -> None:
        """End bridge, twin and server, then the node."""
        self._end_processes()
        self.session.close()

    def __enter__(self) -> Launcher:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, name: str, module: str, options: str, ending_s: float = 5.0, loses: str = "") -> None:
        environment, ready = self.config.environment, f"{name} ready"
        process = Process(name, module, [options], environment, ready, ending_s=ending_s, loses=loses)
        self.processes[name] = process
        process.wait_ready(_READY_S)

    def _end_processes(self) -> None:
        try:
            for name in ("bridge", "twin", "server"):
                if name in self.processes:
                    self.processes[name].close()
        except BaseException:  # a second Ctrl-C: nobody waits any more, all end by themselves
            for process in self.processes.values():
                process.signal(signal.SIGTERM)
            raise
