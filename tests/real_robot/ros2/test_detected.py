"""The failure detector from the server's answers to the report, over real ROS 2: the twin's arm holds, and stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.real_robot.record.events import AlarmRaised
from embodied_rl.real_robot.record.reader import RecordingFile
from tests.real_robot.ros2.detected import LIMIT

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("detected")


@pytest.fixture(scope="module")
def said(folder: Path, live: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return live("detected", "0.5", str(folder))


def test_an_alarm_is_told_recorded_and_reported_and_the_arm_holds_where_nobody_comes(
    said: dict[str, Any], folder: Path
) -> None:
    alarm, short = said["episodes"]
    assert (alarm["alarms"], short["alarms"]) == ([LIMIT + 1], [])
    (held,) = said["held"]
    assert "nobody took over in 3 s" in held
    assert any("take the arm over, or it holds" in line for line in said["warned"])
    assert any("take the arm over, resume it or disarm it" in line for line in said["warned"])
    assert said["said"]["alarms"]["raised"] == 1
    *_, recorded = RecordingFile(folder / "run.mcap").events(AlarmRaised)
    assert (recorded.decision, recorded.kind, recorded.limit) == (LIMIT + 1, "clock", LIMIT)
