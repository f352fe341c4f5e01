"""The film comes from a recording, step by step, and the dashboard's picture needs nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.benchmarks.lab.deploy_film import LAST, film, svg
from embodied_rl.real_robot.deploy.episodes import Episode
from embodied_rl.real_robot.record.reader import RecordingFile
from embodied_rl.real_robot.record.recorder import Recorder
from tests.real_robot.robot_loop import ScriptedRobot, picture, session

STATUS: dict[str, Any] = {
    "state": "running",
    "mode": "live",
    "instruction": "open the drawer",
    "policy": "a policy",
    "answers": 3,
    "unused": 1,
    "warnings": ["policy: late"],
    "errors": 0,
    "acting": 0.95,
    "answer_ms": {"p50": 12.0, "p99": 20.0, "max": 21.0},
    "tick_ms": {"p50": 20.0, "p99": 22.0, "max": 30.0},
    "step_ms": None,
    "delay_steps": 1,
    "flows": {"front": {"rate_hz": 20.0, "age_ms": 3.0, "problem": ""}},
    "outcomes": {"allow": 5},
    "reasons": {"jerk": 2},
    "faults": [],
    "holds": 0,
    "last_hold": "",
    "interventions": 1,
    "since_intervention_s": 4.0,
    "detector": None,
    "recording": {"file": "run.mcap", "dropped": 2, "problem": ""},
}


def test_a_film_shows_every_second_step_of_the_last_episode(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.mcap", session()) as recorder:
        robot = ScriptedRobot(recorder, size=64)
        robot.episode(0, 4, success=False)
        robot.episode(1, 5, success=True)
    frames = film(RecordingFile(tmp_path / "run.mcap"), success=True)
    assert len(frames) == 3 + LAST
    for index, step in enumerate((5, 7, 9)):
        both = np.concatenate([picture(step, 0, 64), picture(step, 1, 64)], axis=1)
        assert (frames[index][-64:] == both).all()
    assert (frames[-1][-64:] == frames[2][-64:]).all()
    assert (frames[-1] != frames[2]).any(), "the last one says how it ended"


def test_the_dashboard_is_whole_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "dashboard.svg"
    svg(path, STATUS, [Episode("a", 50, True, 3.0, 0)])
    text = path.read_text().replace("&#160;", " ")
    assert text.startswith("<svg")
    assert "@font-face" not in text
    for words in ("open the drawer", "limits hit: jerk 2", "2 events lost", "the last 4 s ago"):
        assert words in text
