"""From a robot's recording to a data set and on to a policy: `export RECORDING`, then `sft`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embodied_rl.cli import main
from embodied_rl.data.layout import INTERVENTION
from embodied_rl.data.lerobot import load
from embodied_rl.jobs.export_recording import REWRITTEN
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.real_robot.record import events
from embodied_rl.real_robot.record.recorder import Recorder
from tests.real_robot.robot_loop import ACTION_NAMES, CAMERAS, ScriptedRobot, picture, session

HUMAN = range(4, 7)


def record(path: Path, size: int = 64) -> ScriptedRobot:
    """Four episodes: a success with an intervention, a failure, one without a label, one whose label was corrected."""
    with Recorder(path, session()) as recorder:
        robot = ScriptedRobot(recorder, size)
        recorder.record(events.PolicyChanged(0, "v1", {"checkpoint": "shipped"}))
        robot.episode(0, 10, success=True, human=HUMAN)
        robot.episode(1, 5, success=False)
        robot.episode(2, 4, success=None)
        robot.episode(3, 6, success=False)
        recorder.record(events.EpisodeEnded(robot.now, 3, True, "human", "the lid was shut after all"))
        robot.stop()
    return robot


def _parquet(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(path).read() for path in sorted(folder.rglob("*.parquet")))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ScriptedRobot]:
    path = tmp_path_factory.mktemp("recorded") / "run.mcap"
    return path, record(path)


def test_a_recording_becomes_a_data_set(recorded: tuple[Path, ScriptedRobot], tmp_path: Path) -> None:
    path, robot = recorded
    assert main(["export", str(path), "--to", "lerobot", "--out", str(tmp_path / "all")]) == 0
    data = load(tmp_path / "all")
    assert np.diff(data.starts).tolist() == [10, 5, 4, 6]
    assert data.camera_names == list(CAMERAS)
    assert data.instruction[0] == "do thing 0"
    assert data.instruction[-1] == "do thing 3"
    np.testing.assert_array_equal(data.action, np.array(robot.actions, np.float32))
    np.testing.assert_array_equal(data.state, np.array(robot.proprios, np.float32))
    for row in range(25):
        for view in range(2):
            assert (data.images[[row]][0, view] == picture(row + 1, view, 64)).all(), "without loss, at its own step"
    table = _parquet(tmp_path / "all" / "data")
    assert np.flatnonzero(table[INTERVENTION]).tolist() == list(HUMAN)
    assert len(table[REWRITTEN]) == 25
    features = data.info["features"]
    assert features[INTERVENTION] == {"dtype": "bool", "shape": [1], "names": None}
    assert features["action"]["names"] == list(ACTION_NAMES)
    assert (data.info["fps"], data.info["robot_type"]) == (20, "fr3")
    assert data.source["recordings"][0]["policies"] == {"v1": {"checkpoint": "shipped"}}
    stats = json.loads((tmp_path / "all" / "meta" / "stats.json").read_text())
    assert stats[INTERVENTION]["mean"] == [3 / 25]
    episodes = _parquet(tmp_path / "all" / "meta" / "episodes")
    assert episodes["embodied_rl/success"].to_pylist() == [1, 0, -1, 1]
    assert episodes["embodied_rl/interventions"].to_pylist() == [3, 0, 0, 0]


@pytest.mark.parametrize(
    ("words", "lengths"),
    [(["--episodes", "success"], [10, 6]), (["--episodes", "labelled"], [10, 5, 6]), (["--steps", "human"], [3])],
)
def test_episodes_and_steps_can_be_chosen(
    recorded: tuple[Path, ScriptedRobot], tmp_path: Path, words: list[str], lengths: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "some"
    assert main(["export", str(recorded[0]), "--out", str(out), *words]) == 0
    assert np.diff(load(out).starts).tolist() == lengths
    assert f"{len(lengths)} episodes, {sum(lengths)} frames, 3 of them a human's" in capsys.readouterr().out


def test_sft_learns_from_it(recorded: tuple[Path, ScriptedRobot], tmp_path: Path) -> None:
    data, out = tmp_path / "demos", tmp_path / "policy"
    assert main(["export", str(recorded[0]), "--to", "lerobot", "--out", str(data), "--episodes", "success"]) == 0
    fast = ["--steps", "2", "--batch-size", "4", "--warmup", "1", "--val-samples", "4", "--chunk-len", "2"]
    assert main(["sft", str(data), "--out", str(out), "--preset", "nano", "--threads", "1", *fast]) == 0
    wrote = read_provenance(out)
    assert wrote["dataset"]["collected"]["episodes"] == "success"
    # with chunks of 2: the person's last frame is followed by the policy's
    assert wrote["targets"] == {"total": 32, "masked": 3}
    assert wrote["control_hz"] == 20


def test_what_comes_after_an_intervention_is_not_learned(
    recorded: tuple[Path, ScriptedRobot], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three steps of a human in the middle of an attempt that succeeded."""
    data, out = tmp_path / "human", tmp_path / "policy"
    assert main(["export", str(recorded[0]), "--out", str(data), "--steps", "human"]) == 0
    assert not load(data).success.any()
    fast = ["--steps", "1", "--batch-size", "4", "--warmup", "0", "--chunk-len", "3", "--gripper", "signed"]
    assert main(["sft", str(data), "--out", str(out), "--preset", "nano", "--threads", "1", *fast]) == 0
    assert (
        "3 of 9 targets (33%) lie past the end of their episode, or of a person's part, and are left out"
        in capsys.readouterr().out
    )
    assert read_provenance(out)["targets"] == {"total": 9, "masked": 3}


@pytest.mark.parametrize("lost", [False, True])
def test_what_follows_a_hold_is_another_episode(tmp_path: Path, lost: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The arm holds in steps 5 and 6, or the recorder lost them: what comes next is not the next frame."""
    path, times, success = tmp_path / "run.mcap", [], []
    with Recorder(path, session()) as recorder:

        class Lossy:
            def record(self, event: events.RecordEvent) -> bool:
                step = event.step if isinstance(event, events.ControlStep) else 0
                if isinstance(event, events.ControlStep) and step in (5, 6):
                    return not lost and recorder.record(replace(event, source="none"))
                return recorder.record(event)

        robot = ScriptedRobot(Lossy())
        robot.episode(0, 10, success=True, human=range(7, 9))
    for steps in ("all", "human"):
        assert main(["export", str(path), "--out", str(tmp_path / steps), "--steps", steps]) == 0
        data = load(tmp_path / steps)
        assert ("1 hold within an attempt" in capsys.readouterr().out) == (steps == "all")
        times.append(np.diff(data.starts).tolist())
        success.append(data.success.tolist())
    assert times == [[4, 4], [2]]
    assert success == [[False, True], [False]]


def test_a_recording_that_is_named_twice_is_refused(
    recorded: tuple[Path, ScriptedRobot], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy.mcap"
    copy.write_bytes(recorded[0].read_bytes())
    for other in (recorded[0], copy):
        assert main(["export", str(recorded[0]), str(other), "--out", str(tmp_path / "x")]) == 2
        assert "are the same recording" in capsys.readouterr().err


def test_pictures_of_other_sizes_are_fitted_and_two_recordings_joined(tmp_path: Path) -> None:
    paths = [tmp_path / "one.mcap", tmp_path / "two.mcap"]
    for path, size in zip(paths, (48, 32), strict=True):
        with Recorder(path, replace(session(), wall_ns=session().wall_ns + size)) as recorder:
            ScriptedRobot(recorder, size).episode(0, 3, success=True)
    words = ["export", *map(str, paths), "--to", "lerobot", "--out", str(tmp_path / "both")]
    assert main(words) == 2
    assert main([*words, "--image-size", "32"]) == 0
    data = load(tmp_path / "both")
    assert (np.diff(data.starts).tolist(), data.images.shape[2:4]) == ([3, 3], (32, 32))
    assert (data.images[[3]][0, 0] == picture(1, 0, 32)).all()


def test_a_cut_recording_gives_what_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path, session(), flush_s=0.0) as recorder:
        robot = ScriptedRobot(recorder)
        robot.episode(0, 3, success=True)
        while recorder._queue:
            pass
        middle = path.stat().st_size
        robot.episode(1, 3, success=True)
    path.write_bytes(path.read_bytes()[: middle + 2000])
    assert main(["export", str(path), "--to", "lerobot", "--out", str(tmp_path / "whole")]) == 0
    assert "was cut off or is damaged" in capsys.readouterr().out
    assert len(load(tmp_path / "whole")) in (1, 2)


@pytest.mark.parametrize(
    ("drop", "reason"), [("picture", "images that were not recorded"), ("number", "numbers that are not finite")]
)
def test_an_unsound_episode_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], drop: str, reason: str
) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path, session()) as recorder:

        class Spoiled:
            broken = -1

            def record(self, event: events.RecordEvent) -> bool:
                if drop == "picture" and isinstance(event, events.CameraImage) and event.time_ns == self.broken:
                    return False
                if drop == "number" and isinstance(event, events.ControlStep) and event.step == 5:
                    event.proprio[0] = np.nan
                return recorder.record(event)

        spoiled = Spoiled()
        robot = ScriptedRobot(spoiled)
        robot.episode(0, 3, success=True)
        spoiled.broken = robot.now
        robot.episode(1, 3, success=True)
    assert main(["export", str(path), "--to", "lerobot", "--out", str(tmp_path / "d")]) == 0
    assert f"left out: 1 episodes with {reason}" in capsys.readouterr().out
    assert len(load(tmp_path / "d")) == 1


def test_bad_input_is_one_line(
    recorded: tuple[Path, ScriptedRobot], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = str(recorded[0]), ["--out", str(tmp_path / "x")]
    (tmp_path / "notes.txt").write_text("these are some notes, not a recording")
    for words, problem in (
        ([str(tmp_path / "none.mcap"), *out], "cannot be read"),
        ([str(tmp_path / "notes.txt"), *out], "no MCAP file"),
        ([path, *out, "--to", "hdf5"], "hdf5"),
        ([path, *out, "--image-size", "3"], "--image-size"),
        (["--to", "lerobot", *out], "at least one recording"),
        ([path, "--out", str(tmp_path)], "already exists"),
        ([path, *out, "--checkpoint", "runs/x"], "unknown option"),
    ):
        assert main(["export", *words]) == 2
        error = capsys.readouterr().err
        assert problem in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "x").exists()
