"""Options as ROS parameters, as real rclpy takes them from a command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def said(live: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return live("given")


def test_a_bridge_runs_with_what_it_was_given_and_nobody_changes_it(said: dict[str, Any]) -> None:
    known, (simulated, speed) = said["bridge"]
    options = asdict(BridgeOptions(robot="fr3", port=9000))
    assert known == {name: value for name, value in options.items() if value is not None}
    assert "use_sim_time is not supported" in simulated
    assert "read-only" in speed


def test_a_twin_too(said: dict[str, Any]) -> None:
    assert said["twin"][0] == {**asdict(TwinOptions(seed=3)), "looks": ["light", "texture"]}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("misspelt", "the bridge's options: unknown key 'bridge.robt'. Did you mean 'robot'?"),
        ("token", "set EMBODIED_RL_TOKEN"),
        ("simulated", "use_sim_time is not supported"),
        ("renamed", "__node:=other renames every node of this process"),
    ],
)
def test_what_would_do_nothing_is_refused_in_one_line(said: dict[str, Any], case: str, words: str) -> None:
    assert words in said[case]
    assert "\n" not in said[case]
