"""The `ros` section of an arm's file: what ships is whole, and what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.robot import ROBOTS, load_robot
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.limits_table import limits_table


@pytest.mark.parametrize("robot", ["fr3", "generic", "twin", "ur5e"])
def test_shipped_arms_have_topics(robot: str) -> None:
    config = load_ros_config(robot)
    assert config.arm.topic.startswith("/")
    assert len(config.cameras) == 2
    assert config.has_button == (robot != "twin"), "a real arm's button must be heard"


def test_an_arm_without_topics_is_refused_in_a_line_that_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"so101\.yaml: ros: missing, .* copy the section of robots/generic\.yaml"):
        load_ros_config("so101")


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


def test_the_table_of_limits_says_what_holds_after_margin_and_scaling_and_what_is_meant_to_be_unusual() -> None:
    robot = replace(load_robot("fr3"), overrides=("watchdog.camera_age_s",))
    lines = limits_table(robot, load_ros_config("fr3")).splitlines()
    assert lines[0] == "100 set points a second"
    assert lines[1] == "fr3_joint1 -2.564 to 2.564 rad; 1.31 rad/s, 5 rad/s², 500 rad/s³"
    assert "tool z 0.01 to 0.9 m in fr3_link0" in lines
    assert "fr3_finger_width 0.000 to 0.080 m; 0.1 m/s, 1 m/s², 50 m/s³" in lines
    assert "gripper is sent 0.5 a metre of width, 20 N" in lines
    watched = ["camera age at most 0.2 s", "joint state age at most 0.05 s", "policy silence at most 0.2 s"]
    watched += ["tick jitter at most 0.02 s", "tracking error at most 0.2 rad", "the emergency stop has a button"]
    assert lines[-7:] == [*watched, "BEYOND WHAT IS USUAL, as the file says: watchdog.camera_age_s"]
    assert "THERE IS NO BUTTON" in limits_table(load_robot("twin"), load_ros_config("twin"))
