"""`deploy` before anything starts: what cannot be deployed is said in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied_rl.cli import deploy, main
from embodied_rl.errors import UserError
from embodied_rl.jobs.deploy import fleet_config, held_out, summary
from embodied_rl.real_robot.deploy.dashboard import checklist, dashboard
from embodied_rl.real_robot.deploy.episodes import Episode
from embodied_rl.real_robot.ros2.preflight import Check, from_json, to_json


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("deploy --robot fr33 --instruction x", "robot fr33: no such file"),
        ("deploy --robot fr3", "--instruction"),
        ("deploy --robot fr3 --instruction x --speed 0.5", "--speed is for the twin"),
        ("deploy --robot fr3 --instruction x --dry-run --shadow", "choose one"),
        ("deploy --shadow", "for a real arm"),
        ("deploy --episodes 0", "--episodes must lie in 1"),
        ("deploy --server gpu-box", "--server is HOST:PORT"),
        ("deploy --domain 400", "--domain must lie in 0 to 232"),
        ("deploy --horizn 2", "Did you mean '--horizon'"),
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


def test_options_reach_bridge_and_twin() -> None:
    command = deploy.DeployCommand(horizon=3, latency_ms=150, camera_latency_ms=40, looks=("light",), speed=0.5)
    config = fleet_config(command, {})
    assert config.twin is not None
    assert (config.bridge.horizon, config.bridge.latency_s, config.bridge.speed) == (3, 0.15, 0.5)
    assert (config.twin.camera_latency_s, config.twin.looks, config.twin.speed) == (0.04, ("light",), 0.5)
    arm = fleet_config(deploy.DeployCommand(robot="fr3", instruction="x", server="gpu-box:9000", dry_run=True), {})
    assert (arm.twin, arm.server, arm.bridge.host, arm.bridge.port) == (None, None, "gpu-box", 9000)
    assert (arm.bridge.mode, arm.bridge.resume_s) == ("dry_run", None)


def test_episodes_start_from_states_that_training_has_not_seen() -> None:
    plan = held_out("tabletop_spatial", 12)
    assert len(set(plan)) == 12
    assert {state for _, state, _ in plan} == {50, 51, 52}
    with pytest.raises(UserError, match="250 held-out"):
        held_out("tabletop_spatial", 251)


def test_what_a_person_sees() -> None:
    done = [Episode("a", 50, True, 3.0, 0), Episode("b", 50, False, 7.5, 2)]
    said = summary(done, {})
    assert said["won"] == 1
    assert "1 of 2 episodes succeeded (50%, 9% to 91% at 95 %); 2 holds" in said["text"]
    assert dashboard({}, done, "").row_count == 1
    checks = [Check("limits", False, "outside: joint 1"), Check("policy", True, "answers")]
    assert from_json(to_json(checks)) == checks
    assert checklist(checks).row_count == 2
