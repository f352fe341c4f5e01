"""A policy server that answers wrongly, late, or as somebody else, while the twin's arm runs: prints one JSON line.

python -m tests.real_robot.ros2.policy_faults SPEED FOLDER: a process that has rclpy.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.deploy.episodes import patiently, to_idle
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions

TASK = "tabletop_object/pick_up_the_bottle_and_place_it_in_the_basket"
WORDS = "pick up the bottle and place it in the basket"
FIRST = {"metadata": {"unnorm_key": "libero_object", "tasks": [WORDS]}}
_WAIT_S, _PAUSE_S = 15.0, 0.5


class PolicyFaults:
    """Runs the arm and lets the server change its ways; notes what the bridge says of it.

    Args:
        launcher: Opened by this.
        how: The server's file.
    """

    def __init__(self, launcher: Launcher, how: Path) -> None:
        from diagnostic_msgs.msg import DiagnosticArray
        from std_msgs.msg import String

        self._launcher, self._bridge, self._how, self._text = launcher, launcher.bridge, how, String
        self.said = list[tuple[int, str]]()
        node = launcher.session.node
        node.create_subscription(DiagnosticArray, "/diagnostics", self._diagnosed, qos.event(10))
        self._anybody = node.create_publisher(String, "/embodied_rl/instruction", qos.event())
        launcher.open()

    def run(self) -> dict[str, Any]:
        """Everything in turn, on an arm that runs before each."""
        bridge, twin, found = self._bridge, self._launcher.twin, dict[str, Any]()
        assert twin is not None
        bridge.instruct(twin.begin(TASK, 50, 0))
        self._runs("arm", "start")
        for name, change in (("shape", {"length": 3}), ("late", {"late_s": 1.0})):
            found[name] = self._answers(change)
            self._answers_rightly()
            self._runs("resume")
        self._anybody.publish(self._text(data="throw the mug"))
        told = self._warned("throw the mug")
        found["instruction"] = [told, bridge.status["instruction"], bridge.status["mode"]]
        for name, change in (("unnorm_key", {"unnorm_key": "bridge_orig"}), ("weights", {"weights": "others"})):
            found[name] = self._served_by(change)
        to_idle(bridge)
        bridge.instruct("throw the mug")
        found["unknown"] = [self._warned("none of the 1 tasks"), *self._sound_check()]
        return found

    def _answers(self, change: dict[str, Any]) -> dict[str, Any]:
        """The bridge's state, its reason, its words, the check and a resume while the server answers otherwise."""
        bridge = self._bridge
        self._write(change)
        held = bridge.wait_state("holding", _WAIT_S)
        reason = bridge.transitions[-1]["reason"]
        warned = self._warned("policy: ")
        bridge.wait(lambda: bool(bridge.status["last_error"]), _WAIT_S)
        why = bridge.status["last_error"]
        diagnosed = bridge.wait(lambda: bool(self.said and self.said[-1][0] == 1 and why in self.said[-1][1]), _WAIT_S)
        check = self._policy_check()
        return {
            "held": held, "reason": reason, "warned": warned, "why": why, "diagnosed": diagnosed, "check": check,
            "resume": bridge.call("resume")[0],
        }  # fmt: skip

    def _answers_rightly(self) -> None:
        self._write({})
        assert self._bridge.wait(lambda: not self._bridge.status["last_error"], _WAIT_S)

    def _served_by(self, change: dict[str, Any]) -> list[Any]:
        """Another policy at the same address: what a resume and a yes lead to, then whether it runs again."""
        bridge, launcher = self._bridge, self._launcher
        self._restart({"metadata": {**FIRST["metadata"], **change}})
        named = self._warned(next(iter(change.values())))
        state, resumed, accepted = bridge.state, bridge.call("resume"), bridge.call("accept_policy")
        if not accepted[0]:
            self._restart(FIRST)
        self._runs("resume")
        return [named, state, resumed, accepted, launcher.ended()]

    def _restart(self, how: dict[str, Any]) -> None:
        self._launcher.processes["server"].close()
        self._write(how)
        self._launcher.start_server(self._launcher.port)

    def _write(self, how: dict[str, Any]) -> None:
        fresh = self._how.with_suffix(".new")
        fresh.write_text(json.dumps(how), encoding="utf-8")
        fresh.replace(self._how)

    def _runs(self, *calls: str) -> None:
        """Until it runs: on a busy computer it may hold again."""
        for call in calls:
            patiently(self._bridge, call)
        if not self._bridge.wait_state("running", _WAIT_S):
            raise UserError(f"the arm does not run: it is {self._bridge.state}")

    def _warned(self, words: str) -> str:
        """The status' warning with these words; empty where none comes."""
        found = list[str]()

        def told() -> bool:
            found[:] = [one for one in self._bridge.status["warnings"] if words in one]
            return bool(found)

        return found[0] if self._bridge.wait(told, _WAIT_S) else ""

    def _sound_check(self) -> list[Any]:
        """The check once the last answers are those of a server that answers rightly."""
        for _ in range(30):
            if (found := self._policy_check())[0]:
                break
            self._bridge.wait(lambda: False, _PAUSE_S)
        return found

    def _policy_check(self) -> list[Any]:
        (check,) = [one for one in self._bridge.preflight() if one.name == "policy"]
        return [check.passed, check.detail]

    def _diagnosed(self, message: Any) -> None:
        with self._bridge.subscriptions.changed:
            (status,) = message.status
            self.said.append((int.from_bytes(status.level, "little"), status.message))
            self._bridge.subscriptions.changed.notify_all()


def main(speed: float, folder: Path) -> dict[str, Any]:
    """Server, twin and bridge, and every fault of the server."""
    how = folder / "how.json"
    how.write_text(json.dumps(FIRST), encoding="utf-8")
    config = LauncherConfig(
        environment=os.environ,
        server=("tests.real_robot.ros2.moving_server", "--how", str(how)),
        bridge=BridgeOptions(port=0, speed=speed),
        twin=TwinOptions(suite="tabletop_object", speed=speed, image_size=16),
    )
    launcher = Launcher(config)
    try:
        return PolicyFaults(launcher, how).run()
    finally:
        launcher.close()


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), Path(sys.argv[2]))))
