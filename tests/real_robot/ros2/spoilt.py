"""Cameras and joint states that come on time and say what is not so, while the twin's arm runs: prints one JSON line.

python -m tests.real_robot.ros2.spoilt SPEED FOLDER: a process that has rclpy.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.deploy.episodes import patiently, to_idle
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions
from tests.real_robot.ros2.stops import Stops

REPEATED, EVEN, MEASURED = "the same picture while the tool moved", "the picture is even", "is measured where it was"
SPOILT = {
    "frozen agentview": REPEATED,
    "clock agentview": REPEATED,
    "clock robot0_eye_in_hand": REPEATED,
    "black robot0_eye_in_hand": EVEN,
    "frozen joints": MEASURED,
}
"""What is spoilt, and the words of the fault."""
_REACH_M, _MOVES_M = 0.2, 0.05
"""How far the arm goes to either side, and how far it goes where it runs."""
_WAIT_S, _TOLD_S, _HOLDS = 60.0, 1.0, 20


class Spoilt:
    """An arm that goes to and fro, and whose messages are spoilt and mended."""

    def __init__(self, launcher: Launcher, speed: float) -> None:
        self._stops, self._bridge, self._chain = Stops(launcher, speed), launcher.bridge, load_robot("twin").chain
        assert launcher.twin is not None
        self._twin = launcher.twin

    def run(self) -> dict[str, Any]:
        """All of it in one episode; the first with nothing spoilt."""
        self._stops.run_arm()
        said = {"nothing": self._sound()}
        for name, words in SPOILT.items():
            how, _, what = name.partition(" ")
            said[name] = self._spoil(what, how, words)
            print(name, said[name], file=sys.stderr, flush=True)
        return said

    def _sound(self) -> dict[str, Any]:
        """From one side to the other and back, which is further than any fault takes to be found."""
        seen = len(self._bridge.transitions)
        went = [self._until(lambda side=side: side * float(self._at()[1]) > 0.9 * _REACH_M) for side in (1, -1, 1)]
        return {"went": went, "state": self._bridge.state, "holds": self._reasons(seen)}

    def _spoil(self, what: str, how: str, words: str) -> dict[str, Any]:
        """On an arm that moves; it is mended once the arm holds, and then the arm goes on."""
        bridge, seen = self._bridge, len(self._bridge.transitions)
        moved = self._moves()
        self._twin.spoil({what: how})
        assert self._until(lambda: self._named(words)), f"{how} {what}: no fault; the arm is {bridge.state}"
        said = self._stops.held(words)
        said["holds"], said["refused"] = self._reasons(seen), bridge.call("resume")
        unseen = self._at()
        self._twin.spoil({})
        if what == "joints":
            said["way"] = self._thawed(unseen)
            said["latched"] = bridge.call("resume")
            to_idle(bridge)
            for wish in ("arm", "start"):
                patiently(bridge, wish)
        else:
            patiently(bridge, "resume")
        return {**said, "moved": [moved, self._moves()], "after": self._named(words)}

    def _thawed(self, unseen: np.ndarray) -> float:
        """How far the tool is found to have gone from where it was said to be, m."""
        self._stops.wait(lambda: self._way(unseen) > 0.001)
        return self._way(unseen)

    def _moves(self) -> bool:
        """Whether the arm runs, and its tool goes somewhere."""
        began = self._at()
        return self._until(lambda: self._bridge.state == "running" and self._way(began) > _MOVES_M)

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Whether it comes to that; an arm that holds for another reason, as on a busy computer, is resumed."""
        for _ in range(_HOLDS):
            self._stops.wait(lambda: condition() or self._bridge.state == "holding")
            if self._bridge.wait(condition, _TOLD_S) or self._bridge.state != "holding":
                break
            patiently(self._bridge, "resume")
        return condition()

    def _at(self) -> np.ndarray:
        """Where the tool is measured [3], m."""
        return self._chain.pose(self._stops.angles[-1])[0]

    def _way(self, began: np.ndarray) -> float:
        return float(np.linalg.norm(self._at() - began))

    def _named(self, words: str) -> bool:
        return any(words in one for one in self._bridge.status["faults"])

    def _reasons(self, seen: int) -> list[str]:
        """Why the arm held since so many transitions."""
        return [said["reason"] for said in self._bridge.transitions[seen:] if said["state"] == "holding"]


def main(speed: float, folder: Path) -> dict[str, Any]:
    """Server, twin and bridge, and every fault; pictures are large enough for a clock to be told from the scene."""
    how = folder / "how.json"
    how.write_text(json.dumps({"reach_m": _REACH_M}), encoding="utf-8")
    config = LauncherConfig(
        environment=os.environ,
        server=("tests.real_robot.ros2.moving_server", "--how", str(how)),
        bridge=BridgeOptions(port=0, speed=speed),
        twin=TwinOptions(suite="tabletop_object", speed=speed, image_size=64),
    )
    launcher = Launcher(config)
    try:
        return Spoilt(launcher, speed).run()
    finally:
        launcher.close()


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), Path(sys.argv[2]))))
