"""A twin whose controller stops listening, and emergency stops of every kind, as a process that has rclpy.

python -m tests.real_robot.ros2.stops SPEED [PART...]: prints one JSON line for the tests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from embodied_rl.benchmarks.deploy_faults import Drills
from embodied_rl.real_robot.deploy.episodes import patiently, to_idle
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions

TASK = "tabletop_object/pick_up_the_bottle_and_place_it_in_the_basket"
_WAIT_S = 60.0


class Stops:
    """Brings the arm to motion, does something, and notes what the bridge and the arm say."""

    def __init__(self, launcher: Launcher, speed: float) -> None:
        from diagnostic_msgs.msg import DiagnosticArray
        from sensor_msgs.msg import JointState

        assert launcher.twin is not None
        self.launcher, self.bridge, self.twin = launcher, launcher.bridge, launcher.twin
        self.angles, self.diagnostics = list[np.ndarray](), ""
        node = launcher.session.node
        node.create_subscription(JointState, load_ros_config("twin").joint_states, self._joints, qos.sensor(50))
        node.create_subscription(DiagnosticArray, "/diagnostics", self._diagnosed, qos.event())
        self.drills = Drills(launcher, TASK, speed)

    def run(self, *parts: str) -> dict[str, Any]:
        """These, or every one."""
        every: dict[str, Callable[[], dict[str, Any]]] = {
            "deaf 0.4": lambda: self.deaf(0.4),
            "deaf 10": lambda: self.deaf(10.0),
            "silent": lambda: self.silent(signal.SIGSTOP),
            "killed": lambda: self.silent(signal.SIGKILL),
            **{kind: partial(self.press, kind) for kind in ("best_effort", "reliable", "latched")},
            "two": self.two,
            "lease": self.lease,
            "publisher": self.publisher,
            "kind": self.wrong_kind,
        }
        said = dict[str, Any]()
        for name in parts or every:
            said[name] = every[name]()
            print(name, said[name], file=sys.stderr, flush=True)
        return said

    def deaf(self, seconds: float) -> dict[str, Any]:
        """The controller hears nothing for so many of the twin's seconds, and the bridge holds; then it listens."""
        to_idle(self.bridge)
        self.drills.move()
        deaf_s = self.twin.state["seconds"]
        self.twin.deafen()
        held = self.wait(lambda: self.bridge.state == "holding")
        self.pause(deaf_s + seconds - self.twin.state["seconds"])
        stood, seen = self.angles[-1], len(self.angles)
        self.twin.deafen(False)
        self.pause(1.5)
        moved = float(max(np.abs(angles - stood).max() for angles in self.angles[seen:]))
        return {"held": held, "moved": moved, **self.said()}

    def silent(self, how: signal.Signals) -> dict[str, Any]:
        """A button that repeats hangs or ends; afterwards it goes on, or another takes its place."""
        with self.button("repeating", "10") as button:
            self.run_arm()
            checks = self.checked()
            button.signal(how)
            said = self.held("is silent for")
            refused = self.bridge.call("resume")
            button.signal(signal.SIGCONT)
            if how is signal.SIGSTOP:
                self.gone()
                patiently(self.bridge, "resume")
        if how is signal.SIGKILL:
            with self.button("repeating", "10"):
                self.gone()
        with self.button("once", "reliable", "false"):  # the place of the one that ended is taken
            self.gone()
        return {"checks": checks, "refused": refused, **said}

    def press(self, kind: str) -> dict[str, Any]:
        """A button of this quality of service is pressed; a reset is refused while it is."""
        self.run_arm()
        with self.button("once", kind, "true"):
            stopped = self.wait(lambda: self.bridge.state == "e-stopped")
            self.named(f"{kind}_button")
            refused, buttons = self.bridge.call("reset"), self.bridge.status["buttons"]
        self.let_out()
        return {"stopped": stopped, "refused": refused, "buttons": buttons}

    def two(self) -> dict[str, Any]:
        """Two are pressed, the second is let out."""
        self.run_arm()
        with self.button("once", "reliable", "true"):
            stopped = self.wait(lambda: self.bridge.state == "e-stopped")
            with self.button("once", "reliable", "true", "false"):
                self.named("reliable_button")
            refused = self.bridge.call("reset")
        self.let_out()
        return {"stopped": stopped, "refused": refused}

    def lease(self) -> dict[str, Any]:
        """A button that says it would be alive, by its quality of service, hangs."""
        self.run_arm()
        with self.button("lease", "0.5") as button:
            self.wait(lambda: bool(self.bridge.status["buttons"]))
            button.signal(signal.SIGSTOP)
            said = self.held("is not alive any more")
        self.gone()
        return said

    def publisher(self) -> dict[str, Any]:
        """Somebody else begins to command the arm while it runs."""
        self.run_arm()
        with self.button("commands"):
            said = self.held("second_commander also publishes")
        self.gone()
        return said

    def wrong_kind(self) -> dict[str, Any]:
        """A button of another type."""
        self.run_arm()
        with self.button("number"):
            said = self.held("std_msgs/msg/Int8")
            said["checks"] = self.checked()
        self.gone()
        return said

    def button(self, *words: str) -> Process:
        """A button's process, ready once the bridge hears it."""
        process = Process("button", "tests.real_robot.ros2.button", words, self.launcher.config.environment, "said")
        process.wait_ready(_WAIT_S)
        return process

    def held(self, words: str) -> dict[str, Any]:
        """Wait until the arm holds and its faults have these words."""
        found = self.wait(lambda: any(words in one for one in self.bridge.status["faults"]))
        held = self.wait(lambda: self.bridge.state == "holding")
        diagnosed = self.wait(lambda: words in self.diagnostics)
        return {"held": held, "found": found, "diagnosed": diagnosed, **self.said()}

    def said(self) -> dict[str, Any]:
        """What the bridge says of itself."""
        return {"state": self.bridge.state, "status": self.bridge.status["faults"]}

    def named(self, name: str) -> None:
        """Wait until whoever presses is known by this name, which comes apart from the messages."""
        self.wait(lambda: {one["name"] for one in self.bridge.status["buttons"] if one["pressed"]} == {name})

    def checked(self) -> list[dict[str, Any]]:
        """The check of the emergency stop."""
        return [asdict(check) for check in self.bridge.preflight() if check.name == "emergency stop"]

    def let_out(self) -> None:
        with self.button("once", "reliable", "false"):
            patiently(self.bridge, "reset")

    def gone(self) -> None:
        """Wait until the faults are gone that stops are about."""
        kinds = ("emergency_stop", "commands")
        assert self.wait(lambda: not any(one.startswith(kinds) for one in self.bridge.status["faults"])), self.said()

    def run_arm(self) -> None:
        """To idle, where the last drill left it, then armed and started."""
        to_idle(self.bridge)
        self.bridge.instruct(self.twin.begin(TASK, 50, 0))
        for wish in ("arm", "start"):
            patiently(self.bridge, wish)

    def pause(self, seconds: float) -> None:
        """So many of the twin's seconds."""
        until = self.twin.state["seconds"] + seconds
        assert self.twin.wait(lambda: self.twin.state["seconds"] >= until, _WAIT_S)

    def wait(self, condition: Callable[[], bool]) -> bool:
        return self.bridge.wait(condition, _WAIT_S)

    def _joints(self, message: Any) -> None:
        self.angles.append(np.array(message.position[:7]))

    def _diagnosed(self, message: Any) -> None:
        self.diagnostics = message.status[0].message


def main(speed: float, *parts: str) -> dict[str, Any]:
    """Server, twin and bridge, and every stop."""
    config = LauncherConfig(
        environment=os.environ,
        server=("tests.real_robot.ros2.moving_server",),
        bridge=BridgeOptions(port=0, speed=speed),
        twin=TwinOptions(suite="tabletop_object", speed=speed, image_size=16),
    )
    launcher = Launcher(config)
    try:
        return Stops(launcher, speed).run(*parts)
    except BaseException:
        print(
            *(f"{name}: {line}" for name, one in launcher.processes.items() for line in one.lines),
            sep="\n",
            file=sys.stderr,
        )
        raise
    finally:
        launcher.close()


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), *sys.argv[2:])))
