"""The twin as the arm of a training run: the person over the takeover topics, the emergency stop, a replay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.benchmarks.twin_replay import Replay, ends_of
from embodied_rl.real_robot.record.events import EpisodeEnded
from embodied_rl.real_robot.record.reader import RecordingFile
from tests.real_robot.ros2.trained import AFTER, SPEC, SUITE

pytestmark = pytest.mark.process

SPEED = "0.3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def said(folder: Path, live: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return live("trained", SPEED, str(folder))


@pytest.fixture(scope="module")
def recording(said: dict[str, Any], folder: Path) -> Path:
    (found,) = (folder / "recordings").glob("*.mcap")
    return found


def test_the_twins_expert_takes_over_and_reaches_the_goal(said: dict[str, Any]) -> None:
    helped = said["helped"]
    assert helped["ended"] == [True, True, False]
    assert helped["human"] == [False] * AFTER + [True] * helped["steps"]
    assert len(helped["actions"]) == len(helped["proprio"]) == AFTER + helped["steps"]
    assert helped["rests"], "nobody moves the arm between episodes, as while the policy learns"


def test_a_replay_of_the_episode_ends_within_5_mm(said: dict[str, Any], recording: Path) -> None:
    helped = said["helped"]
    actions, human = np.array(helped["actions"], np.float32), np.array(helped["human"])
    end = ends_of(recording)[actions[human].tobytes()]
    found = Replay(SUITE).end(SPEC.task, SPEC.init_state, SPEC.seed, actions, helped["decisions"], human)
    assert np.linalg.norm(found - end) < 0.005
    still = Replay(SUITE).end(
        SPEC.task, SPEC.init_state, SPEC.seed, actions[~human], helped["decisions"][:AFTER], [False] * AFTER
    )
    assert np.linalg.norm(still - end) > 0.05, "it is the person who moved the arm there"


def test_the_recording_says_how_the_episode_ended(said: dict[str, Any], recording: Path) -> None:
    ends = [event for event in RecordingFile(recording).events(EpisodeEnded) if event.episode == 1]
    assert ends
    assert {(end.success, end.labelled_by) for end in ends} == {(True, "simulator")}


def test_an_emergency_stop_loses_the_episode_and_training_waits_for_its_reset(said: dict[str, Any]) -> None:
    stopped = said["stopped"]
    assert stopped["lost"] == [True, True, False]
    assert stopped["waits"]
    assert stopped["goes_on"] == [False, 4]
