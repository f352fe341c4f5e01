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


def test_an_alarm_is_told_recorded_and_reported_and_the_arm_holds_where_nobody_comes(
    live: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    said = live("detected", "0.25", str(tmp_path))
    alarm, short = said["episodes"]
    assert (alarm["alarms"], short["alarms"]) == ([LIMIT + 1], [])
    (held,) = said["held"]
    assert "nobody took over in 3 s" in held
    assert any("take the arm over, or it holds" in line for line in said["warned"])
    assert any("take the arm over, resume it or disarm it" in line for line in said["warned"])
    assert said["said"]["alarms"]["raised"] == 1
    (recorded,) = RecordingFile(tmp_path / "run.mcap").events(AlarmRaised)
    assert (recorded.episode, recorded.decision, recorded.kind, recorded.limit) == (1, LIMIT + 1, "clock", LIMIT)
