"""Arms' YAML files: the shipped ones hold, and whatever is wrong is said in one line with file, key and remedy."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.gate import Command, SafetyGate
from embodied_rl.real_robot.core.robot import ROBOTS, load_robot
from embodied_rl.real_robot.core.two_arms import load_two_arms
from embodied_rl.real_robot.ros2.config import load_ros_config

SHIPPED = sorted(path.stem for path in ROBOTS.glob("*.yaml"))
OF_TWO = ("aloha",)


@pytest.mark.parametrize("name", sorted(set(SHIPPED) - set(OF_TWO)))
def test_the_shipped_arms_are_read(name: str) -> None:
    robot = load_robot(name)
    assert robot.workspace.inside(robot.home)
    assert len(robot.limits.names) == len(robot.home)
    gate = robot.gate()
    gate.start(robot.home, 0)
    assert gate.period_ns == round(1e9 / robot.rate_hz)


def test_figures_are_scaled_and_keep_their_margin() -> None:
    limits = load_robot("fr3").limits
    np.testing.assert_allclose(limits.velocity, [1.31, 1.31, 1.31, 1.31, 2.63, 2.09, 2.63])
    np.testing.assert_allclose(limits.acceleration, 5.0)
    np.testing.assert_allclose(limits.jerk, 500.0)
    np.testing.assert_allclose([limits.lower[3], limits.upper[3]], [-3.0421 + 0.18, -0.1518 - 0.18])


# libfranka's rate_limiting.h, computeUpperLimitsJointVelocity: min(v, -c + sqrt(k (end - q))), and the same downwards.
FR3_V, FR3_C = [2.62, 2.62, 2.62, 2.62, 5.26, 4.18, 5.26], [0.30, 0.20, 0.20, 0.30, 0.35, 0.35, 0.35]
FR3_K = [12.0, 5.17, 7.0, 8.0, 34.0, 11.0, 34.0]
FR3_UPPER = [2.75010, 1.79180, 2.90650, -0.1458, 2.81010, 4.52050, 3.01960]
FR3_LOWER = [-2.75010, -1.79180, -2.90650, -3.04810, -2.81010, 0.54092, -3.01960]


@pytest.mark.parametrize("end", ["lower", "upper"])
def test_fr3_is_never_asked_for_more_than_its_velocity_limit_at_a_position(end: str) -> None:
    robot = load_robot("fr3")
    limits, period = robot.limits, round(1e9 / robot.rate_hz)
    gate = SafetyGate(limits, robot.rate_hz)
    target, before = getattr(limits, end), robot.home
    gate.start(before, 0)
    fastest = np.zeros(7)
    for tick in range(1, 400):
        setpoint = gate.decide(Command(tick * period, limits.names, target), tick * period).setpoint
        assert setpoint is not None
        speed, before = np.abs(setpoint.positions - before) * robot.rate_hz, setpoint.positions
        left = np.abs((np.array(FR3_UPPER) if end == "upper" else np.array(FR3_LOWER)) - before)
        allowed = np.minimum(FR3_V, -np.array(FR3_C) + np.sqrt(np.array(FR3_K) * left))
        assert (speed <= allowed - 1e-3).all()
        fastest = np.maximum(fastest, speed)
    np.testing.assert_allclose(before, target, atol=1e-3)
    np.testing.assert_allclose(fastest, limits.velocity, rtol=1e-2)


def without_source(text: str) -> list[str]:
    """Lines with a number outside `joints`, whose source is the file's head, that no comment explains.

    A comment stands on the line, on its block's first line, or above the numbers that it is for.
    """
    found, block, above = list[str](), "", ""
    for line in text.splitlines():
        if line.strip() and not line.startswith((" ", "#")):
            block = line
        if not re.search(r"[:\[]\s*-?\d", line) or line.startswith("#"):
            above = line
        elif "#" not in line + block and not above.strip().startswith("#") and not block.startswith("joints:"):
            found.append(line)
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_has_a_source(name: str) -> None:
    assert without_source((ROBOTS / f"{name}.yaml").read_text()) == []


def test_a_number_without_a_source_is_found() -> None:
    assert without_source("rate_hz: 100.0\n\nwatchdog:\n  camera_age_s: 0.2\n") == [
        "rate_hz: 100.0",
        "  camera_age_s: 0.2",
    ]
    assert without_source("# measured\nrate_hz: 100.0\nwatchdog:  # chosen\n  camera_age_s: 0.2\n") == []


@pytest.mark.parametrize(
    ("old", "path"),
    [
        ("rate_hz: ", "extra"),
        ("position: [-2.7437", "joints.fr3_joint1.extra"),
        ("xyz: [0.0, 0.0, 0.2104]", "tool.extra"),
        ("acceleration: 0.5", "scaling.extra"),
        ("lower: [0.15", "workspace.extra"),
        ("joint: fr3_finger_width", "gripper.extra"),
        ("camera_age_s: 0.2", "watchdog.extra"),
    ],
)
def test_an_unknown_key_of_any_section_is_refused_by_name(tmp_path: Path, old: str, path: str) -> None:
    text, file = (ROBOTS / "fr3.yaml").read_text(), tmp_path / "arm.yaml"
    flow = old.startswith(("position", "xyz", "acceleration", "lower"))
    indent = "" if path == "extra" else "  "
    file.write_text(text.replace(old, f"extra: 1, {old}" if flow else f"extra: 1\n{indent}{old}", 1))
    with pytest.raises(UserError, match=rf"arm\.yaml: {re.escape(path)}: unknown key"):
        load_robot(str(file))


@pytest.mark.parametrize("name", OF_TWO)
def test_the_shipped_pairs_are_read(name: str) -> None:
    robot = load_two_arms(name)
    gate = robot.gate()
    gate.start(robot.home, 0)
    assert gate.period_ns == round(1e9 / robot.rate_hz)


def test_there_are_four_arms_a_pair_and_a_twin() -> None:
    assert SHIPPED == ["aloha", "fr3", "generic", "so101", "twin", "ur5e"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "rate_hz: 100.0",
            "rate_hz: fast",
            "arm.yaml: rate_hz: 'fast' is no finite number; give set points per second",
        ),
        ("rate_hz: 100.0", "rate_hz: 0", "rate_hz: 0 must be positive"),
        ("rate_hz: 100.0", "rate_hz: 1.0e+6", "rate_hz: 1e+06 lies beyond 10 to 1000 (set points per second): "),
        ("rate_hz: 100.0", "rate_hz: 50000.0\noverrides: [rate_hz]", "rate_hz: a stop takes"),
        ("rate_hz: 100.0", "rate: 100.0", "arm.yaml: rate_hz: missing; give set points per second"),
        ("rate_hz: 100.0", "rate_hz: 100.0\nrate: 5", "rate: unknown key. Did you mean 'rate_hz'?"),
        ("rate_hz: 100.0", "rate_hz: 100.0\nrate_hz: 5", "the key rate_hz occurs twice: remove one"),
        ("rate_hz: 100.0", "rate_hz: .nan", "rate_hz: nan is no finite number"),
        ("rate_hz: 100.0", "rate_hz: yes", "rate_hz: True is no finite number"),
        (
            "jerk: 5000.0",
            "jerk: 5e3",
            "joints.fr3_joint1.jerk: '5e3' is no finite number; give rad/s^3 (5000.0, not 5e3)",
        ),
        ("jerk: 5000.0", "jerk: -1", "joints.fr3_joint1.jerk: -1 must be positive"),
        ("jerk: 5000.0", "jerks: 5000.0", "joints.fr3_joint1.jerk: missing; give rad/s^3"),
        ("[-2.7437, 2.7437]", "[2.7437, -2.7437]", "joints.fr3_joint1.position: [2.7437, -2.7437] is empty"),
        ("[-2.7437, 2.7437]", "[-2.7437]", "joints.fr3_joint1.position: [-2.7437] is not a list of 2 numbers"),
        ("axis: [0, 0, 1]", "axis: [0, 0, 0]", "joints.fr3_joint1.axis: [0, 0, 0] is no direction"),
        ("velocity: 0.5,", "velocity: 1.5,", "scaling.velocity: 1.5 is more than the whole"),
        ("position_margin: 0.18", "position_margin: -1", "position_margin: -1 is negative"),
        ("lower: [0.15,", "lower: [0.85,", "workspace.lower: must lie below upper"),
        ("lower: [0.15,", "lower: [0.75,", "home: outside the joints' ranges or the workspace (tool at 0.451,"),
        ("home: [0.0,", "home: [3.0,", "home: outside"),
        ("home: [0.0,", "home: [", "is not a list of 7 numbers; give them in rad, one per joint"),
        ("name: Franka Research 3", "name: 3", "name: 3 is no text"),
        ("[0.0, 0.08]", "[0.08, 0.0]", "gripper.position: [0.08, 0.0]: closed must be smaller"),
        ("camera_age_s: 0.2", "camera_age: 0.2", "watchdog.camera_age_s: missing"),
        ("tool: {", "tool: [", "arm.yaml is not valid YAML"),
        ("watchdog: ", "watchdogs: ", "watchdog: missing"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    text, path = (ROBOTS / "fr3.yaml").read_text(), tmp_path / "arm.yaml"
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        load_robot(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- 1\n", "just text\n", "\x00\n", "? [a]\n: 1\n"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "arm.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"arm\.yaml"):
        load_robot(str(path))


def test_an_unknown_arm_lists_the_shipped_ones() -> None:
    with pytest.raises(UserError, match="Did you mean 'fr3'"):
        load_robot("fr4")


def test_the_bridges_section_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "arm.yaml"
    path.write_text((ROBOTS / "fr3.yaml").read_text().partition("\nros:")[0] + "\nros: {anything: 1}\n")
    assert load_robot(str(path)).name == "Franka Research 3"


HOSTILE = {
    "aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{two}: &{two} [{', '.join(['*' + one] * 9)}]\n" for one, two in itertools.pairwise("abcdefg")),
    "an anchor": "name: &arm Franka\n",
    "a merge": "rate_hz: 100.0\n<<: {name: arm}\n",
    "brackets": "name: " + "[" * 5000 + "]" * 5000,
    "open brackets": "name: " + "[" * 100_000,
    "mappings": "".join(f"{' ' * deep}a:\n" for deep in range(900)),
    "a long name": f"name: [{'x' * 500_000}]\n",
    "a long key": f"{'x' * 500_000}: 1\n",
    "a long number": f"name: arm\nrate_hz: {'9' * 9000}\n",
    "a huge number": f"name: arm\nrate_hz: 0x{'f' * 9000}\n",
    "a large number": f"name: arm\nrate_hz: {'9' * 400}\n",
    "a day that is none": "name: 2026-13-45\n",
    "a tag": "name: !!python/object:os.system x\n",
    "two documents": "name: a\n---\nname: b\n",
    "a large file": "# " + "x" * (1 << 20),
    "many keys": "".join(f"k{number}: 1\n" for number in range(20_000)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("reader", [load_robot, load_ros_config])
def test_hostile_yaml_is_refused_in_one_short_line(text: str, reader: Callable[[str], Any], tmp_path: Path) -> None:
    path = tmp_path / "arm.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"^arm\.yaml") as caught:
        reader(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
