"""Two arms over real ROS 2: a policy that leads them together, the bridge that does not let it, and their twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.two_arms import load_two_arms
from embodied_rl.real_robot.record.events import JointStates
from embodied_rl.real_robot.record.reader import RecordingFile
from tests.real_robot.two_arms_model import TwoArmModel

pytestmark = pytest.mark.process

SPEED, EPISODES = "0.35", "3"
ALOHA = load_two_arms("aloha")
SLACK = 2e-3
"""m by which measured arms may be nearer than their set points: they follow within it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arms")


@pytest.fixture(scope="module")
def said(folder: Path, live: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return live("two_arm_scenario", SPEED, EPISODES, str(folder))


def test_the_arms_hold_with_a_reason_that_names_both(said: dict[str, Any]) -> None:
    assert [one["note"] for one in said["episodes"]] == [""] * int(EPISODES)
    near = [reason for reason in said["held"] if reason.startswith("distance: left ") and " and right " in reason]
    assert len(near) >= int(EPISODES)
    assert said["status"]["reasons"]["distance"] >= int(EPISODES)


def test_every_check_before_arming_passes_but_the_button_speaks(said: dict[str, Any]) -> None:
    names = {check["name"] for check in said["checks"]}
    assert {"limits", "workspace", "distance", "standstill", "gripper", "controller", "policy"} <= names


def test_no_set_point_is_beyond_a_limit_and_the_arms_stay_apart(said: dict[str, Any], folder: Path) -> None:
    recording, model = RecordingFile(folder / "arms.mcap"), TwoArmModel()
    sent = np.array([tick["setpoint"] for tick in recording.events(Tick) if tick["setpoint"] is not None])
    assert len(sent) > 50 * int(EPISODES)
    assert ((sent >= ALOHA.limits.lower) & (sent <= ALOHA.limits.upper)).all()
    assert max(model.outside(one) for one in sent) <= 0
    assert min(model.distance(one) for one in sent) >= ALOHA.distance
    measured = [one.positions[:12] for one in recording.events(JointStates)]
    nearest = min(model.distance(np.array(one)) for one in measured)
    assert ALOHA.distance - SLACK <= nearest < ALOHA.distance + 0.1
