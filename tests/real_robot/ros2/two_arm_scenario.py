"""Server, bridge and twin of two arms, as a process that has rclpy: prints one JSON line for the tests.

python -m tests.real_robot.ros2.two_arm_scenario SPEED EPISODES FOLDER: the recording goes into the folder.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.real_robot.core.robot import ROBOTS
from embodied_rl.real_robot.deploy.episodes import patiently, run_episode
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions
from tests.real_robot.test_two_arms import START
from tests.real_robot.two_arms_model import scene_xml


def main(speed: float, episodes: int, folder: Path) -> dict[str, Any]:
    """Episodes in which the policy leads the arms together, and an emergency stop."""
    content = yaml.safe_load((ROBOTS / "aloha.yaml").read_text())
    content["ros"]["emergency_stop_button"] = False
    content["watchdog"] |= {"tick_jitter_s": 0.1, "joint_state_age_s": 0.15}  # a busy computer
    robot, scene = folder / "arms.yaml", folder / "arms.xml"
    robot.write_text(yaml.safe_dump(content, sort_keys=False))
    scene.write_text(scene_xml(content, START))
    config = LauncherConfig(
        environment=os.environ,
        server=("tests.real_robot.ros2.two_arm_server",),
        bridge=BridgeOptions(
            robot=str(robot), port=0, speed=speed, record=str(folder / "arms.mcap"), horizon=4, resume_s=0.3
        ),
        twin=TwinOptions(robot=str(robot), suite=str(scene), speed=speed, image_size=0),
    )
    launcher = Launcher(config)
    try:
        launcher.open()
        assert launcher.twin is not None
        done = [run_episode(launcher.bridge, launcher.twin, "arms", 0, 1.5) for _ in range(episodes)]
        checks = [asdict(check) for check in launcher.bridge.preflight()]
        status = launcher.bridge.status
        launcher.bridge.press()
        assert launcher.bridge.wait_state("e-stopped", 60.0)
        launcher.bridge.press(False)
        patiently(launcher.bridge, "reset")
        held = [one["reason"] for one in launcher.bridge.transitions if one["event"] == "hold"]
        return {"episodes": [asdict(one) for one in done], "checks": checks, "status": status, "held": held}
    finally:
        launcher.close()


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
