"""Slips in an arm's file: each is refused by its key, unless the file says by name that it is meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.robot import ROBOTS, load_robot
from embodied_rl.real_robot.ros2.config import load_ros_config

DEGREE = 57.29577951308232


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a file has numbers."""
    if isinstance(content, dict | list):
        for key, inner in content.items() if isinstance(content, dict) else enumerate(content):
            yield from leaves(inner, (*path, key))
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield path


def read(content: dict[str, Any], folder: Path) -> None:
    """Read the whole file as the bridge does."""
    path = folder / "arm.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    load_robot(str(path))
    load_ros_config(str(path))


@pytest.mark.parametrize(("name", "wrong"), [("fr3", 1e6), ("ur5e", -1e6)])
def test_every_number_of_a_file_has_a_band(name: str, wrong: float, tmp_path: Path) -> None:
    text = (ROBOTS / f"{name}.yaml").read_text()
    content = yaml.safe_load(text)
    places = list(leaves(content))
    assert len(places) > 80
    for place in places:
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        before, inner[place[-1]] = inner[place[-1]], wrong
        key = ".".join(part for part in place if isinstance(part, str))
        with pytest.raises(UserError, match=re.escape(f"arm.yaml: {key}: ")) as caught:
            read(content, tmp_path)
        assert "\n" not in str(caught.value)
        inner[place[-1]] = before
    read(content, tmp_path)


SLIPS: list[tuple[str, str, Any]] = [
    ("fr3", "watchdog.camera_age_s", 200),
    ("fr3", "watchdog.camera_age_s", 0.0002),
    ("fr3", "watchdog.joint_state_age_s", 50),
    ("fr3", "watchdog.joint_state_age_s", 0.5),
    ("fr3", "watchdog.policy_silence_s", 200),
    ("fr3", "watchdog.tick_jitter_s", 20),
    ("fr3", "watchdog.tracking_error", 0.2 * DEGREE),
    ("fr3", "watchdog.tracking_error", 200),
    ("fr3", "rate_hz", 0.01),
    ("fr3", "rate_hz", 10_000),
    ("fr3", "joints.fr3_joint1.position", [-157.2, 157.2]),
    ("fr3", "joints.fr3_joint1.position", [2.7437, -2.7437]),
    ("fr3", "joints.fr3_joint1.velocity", 2.62 * DEGREE),
    ("fr3", "joints.fr3_joint1.velocity", 2620),
    ("fr3", "joints.fr3_joint1.acceleration", 10 * DEGREE),
    ("fr3", "joints.fr3_joint1.jerk", 5000 * DEGREE),
    ("ur5e", "joints.elbow_joint.velocity", 180),
    ("ur5e", "joints.elbow_joint.acceleration", 180),
    ("ur5e", "joints.elbow_joint.jerk", 62.8 * DEGREE),
    ("generic", "joints.joint_1.acceleration", 2 * DEGREE),
    ("generic", "joints.joint_1.jerk", 40 * DEGREE),
    ("fr3", "joints.fr3_joint1.xyz", [0.0, 0.0, 333]),
    ("fr3", "joints.fr3_joint1.xyz", [0.0, 0.0, 33.3]),
    ("fr3", "joints.fr3_joint2.rpy", [-90, 0, 0]),
    ("fr3", "joints.fr3_joint2.axis", [0, 0, 90]),
    ("fr3", "tool.xyz", [0.0, 0.0, 210.4]),
    ("fr3", "tool.rpy", [0.0, 0.0, -45]),
    ("fr3", "home", [0.0, -9.2, 0.0, -140.1, 0.0, 127.6, 45.0]),
    ("fr3", "position_margin", 10),
    ("fr3", "position_margin", -0.1),
    ("fr3", "scaling.velocity", 50),
    ("fr3", "scaling.acceleration", 0),
    ("fr3", "scaling.jerk", 10),
    ("fr3", "workspace.lower", [-1000, -1000, -1000]),
    ("fr3", "workspace.upper", [1000, 1000, 1000]),
    ("fr3", "workspace.upper", [800, 550, 900]),
    ("fr3", "workspace.upper", [80, 55, 90]),
    ("ur5e", "workspace.upper", [3, 3, 3]),
    ("fr3", "workspace.lower", [0.80, 0.55, 0.90]),
    ("fr3", "gripper.position", [0, 80]),
    ("fr3", "gripper.position", [0.0, 8.0]),
    ("fr3", "gripper.position", [0.08, 0.0]),
    ("fr3", "gripper.velocity", 100),
    ("fr3", "gripper.acceleration", 1000),
    ("fr3", "gripper.jerk", 50_000),
    ("fr3", "ros.gripper.scale", -0.5),
    ("fr3", "ros.gripper.scale", 0),
    ("fr3", "ros.gripper.scale", 500),
    ("fr3", "ros.gripper.effort", 20_000),
    ("fr3", "ros.gripper.effort", -20),
    ("fr3", "ros.base_in_training.xyz", [-660, 0, 912]),
    ("fr3", "ros.base_in_training.rpy", [0, 0, 90]),
    ("fr3", "ros.cameras.front.topic", "/front color"),
    ("fr3", "ros.gripper.fingers", ["fr3_finger_joint1", "fr3_finger_joint1"]),
    ("fr3", "ros.gripper.fingers", ["fr3_joint1", "fr3_finger_joint1"]),
    ("twin", "ros.gripper.effort", 20.0),
]


def slipped(name: str, key: str, value: Any) -> dict[str, Any]:
    content = yaml.safe_load((ROBOTS / f"{name}.yaml").read_text())
    inner = content
    *above, last = key.split(".")
    for part in above:
        inner = inner[part]
    inner[last] = value
    return content


@pytest.mark.parametrize(("name", "key", "value"), SLIPS)
def test_a_file_with_one_slip_is_refused_by_its_key(name: str, key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(slipped(name, key, value), tmp_path)
    message = str(caught.value)
    assert message.startswith(f"arm.yaml: {key}: ")
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ros.cameras.wrist.topic", "/front/color/image_raw"),
        ("ros.cameras.wrist.topic", "front/color/image_raw"),
        ("ros.cameras.wrist.topic", "/front/color/image_raw/compressed"),
        ("ros.cameras.front.topic", "/joint_states"),
        ("ros.arm.topic", "/joint_states"),
        ("ros.emergency_stop", "/joint_states"),
        ("ros.gripper.topic", "/target_joint"),
    ],
)
def test_a_topic_that_two_keys_name_is_refused(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"arm\.yaml: ros\..* is ros\..* already: give each its own topic"):
        read(slipped("fr3", key, value), tmp_path)


def test_a_value_beyond_its_band_is_read_where_the_file_names_its_key(tmp_path: Path) -> None:
    content = slipped("fr3", "watchdog.camera_age_s", 3.0)
    content["ros"]["gripper"]["scale"] = 1000.0
    content["overrides"] = ["watchdog.camera_age_s", "ros.gripper.scale"]
    read(content, tmp_path)
    assert load_robot(str(tmp_path / "arm.yaml")).overrides == ("watchdog.camera_age_s", "ros.gripper.scale")


@pytest.mark.parametrize("key", ["watchdog.camera_age_s", "watchdog.camera", "ros.gripper.scale", "everything"])
def test_an_override_that_nothing_needs_is_refused(key: str, tmp_path: Path) -> None:
    content = yaml.safe_load((ROBOTS / "fr3.yaml").read_text()) | {"overrides": [key]}
    with pytest.raises(UserError, match=f"overrides: {key} is no key whose value lies beyond what is usual"):
        read(content, tmp_path)


@pytest.mark.parametrize("value", ["x" * 300_000, "a\nb", " arm", "arm ", "a\tb", "\x1b[31m"])
@pytest.mark.parametrize(
    "key", ["name", "base_frame", "gripper.joint", "ros.arm.adapter", "ros.arm.topic", "ros.cameras.front.type"]
)
def test_a_text_is_short_and_in_one_line(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read(slipped("fr3", key, value), tmp_path)
    message = str(caught.value)
    assert message.startswith(f"arm.yaml: {key}: ")
    assert message.isprintable()
    assert len(message) < 300


@pytest.mark.parametrize("key", ["a\nb", "\x1b[31m", "\n" * 1000])
def test_a_key_that_cannot_be_printed_is_one_line(key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be printed") as caught:
        read(yaml.safe_load((ROBOTS / "fr3.yaml").read_text()) | {key: 1}, tmp_path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("number", ["0100", "1:40", "-0100", "01_00"])
def test_a_number_of_another_base_is_refused(number: str, tmp_path: Path) -> None:
    """YAML 1.1 reads 0100 as 64 and 1:40 as 100."""
    path = tmp_path / "arm.yaml"
    path.write_text((ROBOTS / "fr3.yaml").read_text().replace("rate_hz: 100.0", f"rate_hz: {number}"))
    with pytest.raises(UserError, match=rf"arm\.yaml line \d+: {number} would be read to another base"):
        load_robot(str(path))
