"""`deploy` before anything starts: what cannot be deployed is said in one line."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from embodied_rl.cli import deploy, main
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import Detector, save_detector
from embodied_rl.jobs.deploy import held_out, launcher_config, may_go_on, recording_path, run, summary
from embodied_rl.jobs.deploy_views import write_views
from embodied_rl.real_robot.deploy.dashboard import checklist, dashboard
from embodied_rl.real_robot.deploy.episodes import Episode
from embodied_rl.real_robot.ros2.preflight import Check, from_json, to_json


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("deploy --robot fr33 --instruction x", "robot fr33: no such file"),
        ("deploy --robot fr3", "--instruction"),
        ("deploy --robot fr3 --instruction x --speed 0.5", "--speed is for the twin"),
        ("deploy --robot fr3 --instruction x --friction 2", "--friction is for the twin"),
        ("deploy --robot fr3 --instruction x --looks light", "--looks is for the twin"),
        ("deploy --robot fr3 --instruction x --json a.json", "--json is for the twin"),
        ("deploy runs/a --server gpu-box:8000", "leave out 'runs/a'"),
        ("deploy --robot fr3 --instruction x --dry-run --shadow", "choose one"),
        ("deploy --instruction x", "for a real arm"),
        ("deploy --record pyproject.toml", "exists already"),
        ("deploy --training-view demos", "for a real arm"),
        ("deploy --robot fr3 --instruction x --training-view demos", "no LeRobot data set"),
        ("deploy --episodes 0", "--episodes must lie in 1"),
        ("deploy --server gpu-box", "--server is HOST:PORT"),
        ("deploy --domain 400", "--domain must lie in 0 to 232"),
        ("deploy --horizn 2", "Did you mean '--horizon'"),
        ("deploy --detector nowhere", "cannot read the detector nowhere"),
        ("deploy --detector pyproject.toml", "pyproject.toml is no detector: embodied-rl watch makes one"),
        ("deploy --detector d --server gpu-box:8000", "start serve there with it"),
        ("deploy --detector d --shadow", "leave it out with --dry-run and --shadow"),
    ],
)
def test_what_cannot_be_deployed_is_one_line(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_without_ros_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing(**_: object) -> dict[str, str]:
        raise UserError("no ROS 2 here: run `make ros2`")

    monkeypatch.setattr(deploy, "ros_environment", missing)
    assert main(["deploy"]) == 2
    assert "make ros2" in capsys.readouterr().err


def test_recording_is_the_default_and_needs_mcap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert recording_path("none") is None
    path = recording_path("auto")
    assert path is not None
    assert (path.parent, path.suffix, path.exists()) == (Path("runs/deploy"), ".mcap", False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["deploy"]) == 2
    assert "--record none" in capsys.readouterr().err


def test_what_cameras_see_lies_beside_training(tmp_path: Path) -> None:
    live = {"front": np.full((48, 64, 3), 200, np.uint8), "wrist": np.full((32, 32, 3), 100, np.uint8)}
    write_views(tmp_path / "views.png", live, [np.full((256, 256, 3), 50, np.uint8)] * 2)
    picture = cv2.imread(str(tmp_path / "views.png"))
    assert picture is not None
    height = picture.shape[0] // 2
    assert picture.shape == (2 * height, 512, 3)
    middle = picture[height - 128 :: height, [128, 384], 0]
    assert middle.tolist() == [[200, 50], [100, 50]]
    assert picture[height - 250, 128, 0] == 0, "black bars, not stretched"
    with pytest.raises(UserError, match="training had 1"):
        write_views(tmp_path / "views.png", live, [live["front"]])


def test_a_real_arm_needs_a_person_at_a_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", (tmp_path / "nobody").open("w+"))
    with pytest.raises(UserError, match="at a terminal"):
        run(deploy.DeployCommand(robot="fr3", instruction="x"), {})
    assert not (tmp_path / "runs").exists(), "nothing was started"


def test_options_reach_bridge_and_twin() -> None:
    command = deploy.DeployCommand(horizon=3, latency_ms=150, camera_latency_ms=40, looks=("light",), speed=0.5)
    config = launcher_config(command, {})
    assert config.twin is not None
    assert (config.bridge.horizon, config.bridge.latency_s, config.bridge.speed) == (3, 0.15, 0.5)
    assert (config.twin.camera_latency_s, config.twin.looks, config.twin.speed) == (0.04, ("light",), 0.5)
    arm = launcher_config(deploy.DeployCommand(robot="fr3", instruction="x", server="gpu-box:9000", dry_run=True), {})
    assert (arm.twin, arm.server, arm.bridge.host, arm.bridge.port) == (None, None, "gpu-box", 9000)
    assert (arm.bridge.mode, arm.bridge.resume_s) == ("dry_run", None)


def test_episodes_start_from_states_that_training_has_not_seen() -> None:
    plan = held_out("tabletop_spatial", 12)
    assert len(set(plan)) == 12
    assert {state for _, state, _ in plan} == {50, 51, 52}
    with pytest.raises(UserError, match="250 held-out"):
        held_out("tabletop_spatial", 251)


def test_a_detector_goes_to_the_server_and_chooses_the_twins_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.safetensors"
    save_detector(Detector("clock", "abc", 4, {"open the drawer of the cabinet": 20.0}), path)
    config = launcher_config(deploy.DeployCommand(checkpoint="start", detector=path), {})
    assert config.server == ("embodied_rl", "serve", "start", "--detector", str(path))
    assert launcher_config(deploy.DeployCommand(), {}).server == ("embodied_rl", "serve", "shipped")
    plan = held_out("tabletop_goal", 3, {"open the drawer of the cabinet"})
    assert [(task.rpartition("/")[2], state) for task, state, _ in plan] == [
        ("open_the_drawer_of_the_cabinet", state) for state in (50, 51, 52)
    ]
    with pytest.raises(UserError, match="50 held-out states of tasks that the detector knows"):
        held_out("tabletop_goal", 51, {"open the drawer of the cabinet"})
    with pytest.raises(UserError, match="was calibrated for no task of tabletop_spatial"):
        held_out("tabletop_spatial", 1, {"open the drawer of the cabinet"})
    assert main(["deploy", "--robot", "fr3", "--instruction", "dance", "--detector", str(path)]) == 2
    assert "was not calibrated for 'dance', but for 'open the drawer of the cabinet'" in capsys.readouterr().err


def test_alarms_are_reported_with_how_the_episodes_ended() -> None:
    done = [
        Episode("a", 50, True, 3.0, 0),
        Episode("a", 51, True, 6.0, 0, alarms=(31,)),
        Episode("a", 52, False, 7.5, 2, alarms=(12, 30)),
        Episode("a", 53, False, 7.5, 0),
    ]
    said = summary(done, {"detector": {"name": "clock 1a2b", "alarms": []}})
    assert said["text"].endswith("; 2 holds; 3 alarms: 2 before a failure, 1 before a success")
    assert said["alarms"] == {"raised": 3, "before_failures": 2, "before_successes": 1}
    assert [episode["alarms"] for episode in said["by_episode"]] == [(), (31,), (12, 30), ()]
    without = summary(done[:1], {"detector": None})
    assert (without["alarms"], "alarm" in without["text"]) == (None, False)


def test_what_a_person_sees() -> None:
    done = [Episode("a", 50, True, 3.0, 0), Episode("b", 50, False, 7.5, 2)]
    said = summary(done, {})
    assert said["won"] == 1
    assert "1 of 2 episodes succeeded (50%, 9% to 91% at 95 %); 2 holds" in said["text"]
    dry = summary(done, {"mode": "dry_run", "outcomes": {"allow": 7, "rewrite": 2}})
    assert "7 allow, 2 rewrite; none was sent" in dry["text"]
    assert "succeeded" not in dry["text"]
    assert dashboard({}, done, "").row_count == 1
    checks = [Check("limits", False, "outside: joint 1"), Check("policy", True, "answers")]
    assert from_json(to_json(checks)) == checks
    assert checklist(checks).row_count == 2
    assert not may_go_on(checks)
    assert may_go_on([Check("emergency stop", False, "no button is heard")]), "it is pressed, reset, then armed"
