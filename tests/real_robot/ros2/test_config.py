"""The `ros` section of an arm's file: what ships is whole, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.robot import ROBOTS
from embodied_rl.real_robot.ros2.config import load_ros_config


@pytest.mark.parametrize("robot", sorted(path.stem for path in ROBOTS.glob("*.yaml")))
def test_shipped_arms_have_topics(robot: str) -> None:
    config = load_ros_config(robot)
    assert config.arm.topic.startswith("/")
    assert len(config.cameras) == 2
    assert config.has_button == (robot != "twin"), "a real arm's button must be heard"


def test_a_button_is_there_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    path, text = tmp_path / "arm.yaml", (ROBOTS / "twin.yaml").read_text()
    line = next(line for line in text.splitlines() if "emergency_stop_button: false" in line)
    path.write_text(text.replace(line, ""))
    assert load_ros_config(str(path)).has_button


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("adapter: joint_trajectory", "adapter: joint_traj", "ros.arm.adapter"),
        ("emergency_stop_button: false", "emergency_stop_button: none", "ros.emergency_stop_button: 'none' is neither"),
        ("type: raw", "type: png", "ros.cameras.agentview.type"),
        ("emergency_stop: /emergency_stop", "", "ros.emergency_stop: missing"),
        ("fingers: [gripper0_finger_joint1, gripper0_finger_joint2]", "fingers: []", "ros.gripper.fingers"),
        ("scale: 0.5", "scale: 0.5\n    force: 3", "ros.gripper.force: unknown key"),
        ("ros:", "ros:\n  force: 3", "ros.force: unknown key"),
        ("{adapter: joint", "{force: 3, adapter: joint", "ros.arm.force: unknown key"),
        ("{topic: /agentview", "{force: 3, topic: /agentview", "ros.cameras.agentview.force: unknown key"),
        ("base_in_training: {", "base_in_training: {force: 3, ", "ros.base_in_training.force: unknown key"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    text = (ROBOTS / "twin.yaml").read_text()
    assert old in text
    path = tmp_path / "arm.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=words):
        load_ros_config(str(path))
