"""A server whose failure detector is a clock, while the twin's arm runs and nobody comes: prints one JSON line.

python -m tests.real_robot.ros2.detected SPEED FOLDER: a process that has rclpy; the recording goes into the folder.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.jobs.deploy import summary
from embodied_rl.real_robot.deploy.episodes import run_episode
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.failure_alarm import PERSON_S
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions

TASK = "tabletop_object/pick_up_the_bottle_and_place_it_in_the_basket"
LIMIT = 4.0


def main(speed: float, folder: Path) -> dict[str, Any]:
    """Two episodes: one long enough for the hold, one that ends before any alarm."""
    how = folder / "how.json"
    how.write_text(json.dumps({"limit": LIMIT}), encoding="utf-8")
    config = LauncherConfig(
        environment=os.environ,
        server=("tests.real_robot.ros2.moving_server", "--how", str(how)),
        bridge=BridgeOptions(port=0, speed=speed, record=str(folder / "run.mcap"), resume_s=0.3),
        twin=TwinOptions(suite="tabletop_object", speed=speed, image_size=16),
    )
    launcher = Launcher(config)
    try:
        from std_msgs.msg import String

        bridge, twin, warned = launcher.bridge, launcher.twin, list[str]()
        assert twin is not None

        def listen(message: Any) -> None:
            warned.extend(one for one in json.loads(message.data)["warnings"] if one.startswith("detector: "))

        launcher.session.node.create_subscription(String, "/embodied_rl/status", listen, qos.command())
        launcher.open()
        for tried in range(5):  # a busy computer's own hold may come before the detector's, which is due no more then
            done = [run_episode(bridge, twin, TASK, 50 + tried, PERSON_S + 6.0)]
            if held := [change["reason"] for change in bridge.transitions if "detector: " in change["reason"]]:
                break
        new = folder / "new.json"
        new.write_text(json.dumps({"limit": 1e9}), encoding="utf-8")
        new.replace(how)
        done.append(run_episode(bridge, twin, TASK, 60, 0.4))
        said = summary(done, bridge.status)
        return {"episodes": [asdict(episode) for episode in done], "held": held, "warned": warned, "said": said}
    finally:
        launcher.close()


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), Path(sys.argv[2]))))
