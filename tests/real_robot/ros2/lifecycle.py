"""A bridge that somebody else configures, activates, deactivates, cleans up and shuts down while its arm moves."""

from __future__ import annotations

import threading
from typing import Any

from embodied_rl.benchmarks.deploy_faults import MOVING, Drills
from embodied_rl.real_robot.deploy.episodes import patiently
from embodied_rl.real_robot.deploy.launcher import Launcher
from embodied_rl.real_robot.ros2.clock import Clock

_WAIT_S, _WATCHED_NS = 120.0, 500_000_000


class Lifecycle:
    """The lifecycle's services of the bridge, as `ros2 lifecycle` calls them."""

    def __init__(self, node: Any) -> None:
        from lifecycle_msgs.msg import Transition
        from lifecycle_msgs.srv import ChangeState, GetState

        self._transition, self._change_state, self._get_state = Transition, ChangeState, GetState
        self._change = node.create_client(ChangeState, "/embodied_rl/change_state")
        self._get = node.create_client(GetState, "/embodied_rl/get_state")

    def set(self, label: str) -> list[Any]:
        """Whether a transition was done, and the state after it."""
        request = self._change_state.Request(transition=self._transition(label=label))
        return [self._call(self._change, request).success, self.state()]

    def shut_down(self) -> bool:
        """Whether the active node was finalized."""
        ending = self._transition(id=self._transition.TRANSITION_ACTIVE_SHUTDOWN)
        return self._call(self._change, self._change_state.Request(transition=ending)).success

    def state(self) -> str:
        """The present one."""
        return self._call(self._get, self._get_state.Request()).current_state.label

    def _call(self, client: Any, request: Any) -> Any:
        assert client.wait_for_service(timeout_sec=_WAIT_S)
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        assert answered.wait(_WAIT_S)
        return future.result()


class Managed:
    """Notes what the bridge and the arm do, state by state."""

    def __init__(self, launcher: Launcher, drills: Drills, clock: Clock) -> None:
        assert launcher.twin is not None
        self.launcher, self.bridge, self.twin = launcher, launcher.bridge, launcher.twin
        self.drills, self.watch, self.clock = drills, drills.watch, clock
        self.node = Lifecycle(launcher.session.node)

    def run(self) -> dict[str, Any]:
        """Through every state; the last one ends the bridge's process."""
        node, said = self.node, dict[str, Any]()
        said["unconfigured"] = [node.state(), node.set("activate")]
        said["configured"] = [node.set("configure"), self._refused()]
        said["activated"] = node.set("activate")
        self._move()
        said["deactivated"] = [node.set("deactivate"), self._afterwards(), self._refused()]
        node.set("activate")
        self._move()
        self.bridge.press()
        assert self.bridge.wait_state("e-stopped", _WAIT_S)
        latched = [node.set("deactivate"), node.set("cleanup"), self.bridge.state]
        self.bridge.press(False)
        patiently(self.bridge, "reset")
        said["e-stopped"] = [*latched, node.set("cleanup")]
        said["services"] = [name for name, _ in self._services() if name.endswith(("/arm", "/takeover/twist"))]
        said["again"] = [node.set("configure"), node.set("activate")]
        self._move()
        said["shut down"] = [node.shut_down(), self._afterwards(), self._exit_code()]
        return said

    def _refused(self) -> str:
        return self.bridge.call("arm")[1]

    def _move(self) -> None:
        self.bridge.instruct(self.twin.begin(self.drills.task, 50, 0))
        for wish in ("arm", "start"):
            patiently(self.bridge, wish)
        for _ in range(10):
            if self.bridge.wait(lambda: self.watch.speed > MOVING and self.bridge.state == "running", 2.0):
                return
            if self.bridge.state == "holding":  # a busy computer
                patiently(self.bridge, "resume")
        raise AssertionError(f"the arm does not move; the bridge is {self.bridge.state}")

    def _afterwards(self) -> list[Any]:
        """The bridge's state, set points that were heard from now on, and the arm's speed a moment later."""
        began_ns = self.clock.now_ns()
        self.clock.sleep_until(began_ns + _WATCHED_NS)
        settled_ns = began_ns + _WATCHED_NS // 2
        late = [heard for heard in self.watch.commands if heard > settled_ns]
        return [self.bridge.state, len(late), self.watch.speed]

    def _services(self) -> list[tuple[str, list[str]]]:
        return self.launcher.session.node.get_service_names_and_types_by_node("embodied_rl", "/")

    def _exit_code(self) -> int | None:
        process = self.launcher.processes["bridge"]
        return process.wait_end(_WAIT_S)


def managed(launcher: Launcher, drills: Drills, speed: float) -> dict[str, Any]:
    """Start a bridge that is not configured, and manage it to its end."""
    launcher.start_bridge(mode="live", autostart=False)
    return Managed(launcher, drills, Clock(speed)).run()
