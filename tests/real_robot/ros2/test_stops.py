"""A controller that listens again, and emergency stops of every kind, over real ROS 2: see `stops.py`.

Nothing here is timed: the processes wait for each other's words, and an arm stands where its joint states say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def stops(live: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return live("stops", "0.35")


@pytest.mark.parametrize("seconds", ["0.4", "10"])
def test_a_controller_that_listens_again_does_not_jump(seconds: str, stops: dict[str, Any]) -> None:
    said = stops[f"deaf {seconds}"]
    assert said["held"]
    assert said["moved"] < 0.02
    assert said["state"] == "holding"


@pytest.mark.parametrize("how", ["silent", "killed"])
def test_a_button_that_falls_silent_holds_the_arm(how: str, stops: dict[str, Any]) -> None:
    said = stops[how]
    (check,) = said["checks"]
    assert check["passed"]
    assert "cell_button repeats " in check["detail"]
    assert (said["held"], said["found"], said["diagnosed"]) == (True, True, True)
    assert any("emergency_stop: cell_button repeats and is silent for" in fault for fault in said["status"])
    done, words = said["refused"]
    assert not done
    assert "cell_button repeats and is silent" in words


@pytest.mark.parametrize("kind", ["best_effort", "reliable", "latched"])
def test_a_button_of_any_quality_of_service_stops_the_arm(kind: str, stops: dict[str, Any]) -> None:
    said = stops[kind]
    assert said["stopped"]
    assert said["refused"] == [False, f"the emergency stop is still pressed: {kind}_button"]
    assert {"name": f"{kind}_button", "pressed": True, "rate_hz": 0.0} in said["buttons"]


def test_a_reset_waits_for_every_button(stops: dict[str, Any]) -> None:
    said = stops["two"]
    assert said["stopped"]
    assert said["refused"] == [False, "the emergency stop is still pressed: reliable_button"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            "lease",
            "emergency_stop: a publisher of /emergency_stop is not alive any more, by its own quality of service",
        ),
        (
            "publisher",
            "commands: second_commander also publishes /joint_trajectory_controller/joint_trajectory: stop it",
        ),
        ("kind", "emergency_stop: cell_button as std_msgs/msg/Int8 on /emergency_stop"),
    ],
)
def test_what_could_keep_the_arm_from_stopping_holds_it_and_is_named(
    part: str, words: str, stops: dict[str, Any]
) -> None:
    said = stops[part]
    assert (said["held"], said["found"], said["diagnosed"]) == (True, True, True)
    assert any(fault.startswith(words) for fault in said["status"])
    if part == "kind":
        (check,) = said["checks"]
        assert not check["passed"]
        assert "std_msgs/msg/Int8" in check["detail"]
