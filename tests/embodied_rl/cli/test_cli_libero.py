"""`train libero` where LIBERO's bundles are installed: here the tabletop's scenes in that format, really simulated."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import pytest

from embodied_rl.cli import main
from embodied_rl.cli.doctor_libero import _summary
from embodied_rl.cli.select import select
from embodied_rl.config.collect import CollectCommand
from embodied_rl.config.env import MujocoConfig, scenes
from embodied_rl.config.suites import suite_named
from embodied_rl.errors import UserError
from embodied_rl.factory.suites import of_scenes
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.jobs.checks import LiberoDoctorConfig
from embodied_rl.jobs.collect import _settings
from embodied_rl.jobs.doctor_libero import Row, asked_suites
from embodied_rl.jobs.fingerprint import fingerprint
from embodied_rl.jobs.train_setup import load_command
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.sim.libero.exported import exported_path
from embodied_rl.sim.libero.premise_files import write_premises
from embodied_rl.sim.libero.premises import Failure, Premises
from embodied_rl.sim.libero.protocol import PROTOCOLS
from embodied_rl.sim.libero.tasks import load_task
from tests import era_library
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    install_fake(tmp_path / "libero")
    return tmp_path / "libero"


def words(checkpoint: Path, run: Path, *more: str) -> list[str]:
    return [
        "train",
        "libero",
        "--suite",
        "libero_goal",
        "--tasks",
        NAME.partition("/")[2],
        "--policy.checkpoint",
        str(checkpoint),
        "--output",
        str(run),
        "--iterations",
        "1",
        "--env.num-envs",
        "2",
        "--rollout.episodes-per-iteration",
        "2",
        "--evaluation.states-per-task",
        "2",
        "--videos",
        "0",
        "--num-threads",
        "1",
        "--env.renderer",
        "raycast",
        "--env.physics-version",
        "current",
        *more,
    ]


def test_the_official_suites_are_the_default_once_they_are_installed(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = select(["libero"]).config
    assert chosen is not None
    assert (chosen.suite, chosen.protocol) == ("libero_spatial", "libero")
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(installed / "nothing"))
    chosen = select(["libero"]).config
    assert chosen is not None
    assert (chosen.suite, chosen.protocol) == ("tabletop_spatial", "native")


def test_training_runs_the_protocol_and_never_the_evaluated_states(
    installed: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(PROTOCOLS["libero"], horizons=dict.fromkeys(PROTOCOLS["libero"].horizons, 16))
    monkeypatch.setitem(PROTOCOLS, "libero", short)
    run = tmp_path / "run"
    assert main(words(checkpoint, run, "--env.render-quality", "exact")) == 0
    assert "instead" not in capsys.readouterr().out
    (info,) = json.loads((run / "run.json").read_text())
    assert info["protocol"] == "libero"
    assert info["simulator"]["render_quality"] == "exact"
    assert info["overlap"]["seen"] is None, "the start's provenance says nothing"
    assert (info["left_out_states"], info["train_states"]) == (0, 50)
    evaluated = json.loads((run / "evaluations" / "iter-000000.json").read_text())
    assert {each["num_steps"] for each in evaluated["results"]} == {16}, "settle steps are not counted"

    exported = exported_path(installed, NAME)
    exported.write_text(json.dumps({**json.loads(exported.read_text()), "instruction": "turn it on"}))
    assert main(["train", "--resume", str(run), "--iterations", "2"]) == 2
    assert "began on other bundles of libero_goal than are installed now" in capsys.readouterr().err


def test_the_command_that_a_run_ends_with_evaluates_as_it_trained(installed: Path) -> None:
    config = select(["libero"]).config
    assert config is not None
    assert scenes(config.env).render_quality == "fast"
    assert load_command(replace(config, output="runs/a")) == (
        "embodied-rl eval --checkpoint runs/a --env.render-quality fast"
    )


def test_demonstrations_say_which_bundles_and_stand_ins_they_show(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = exported_path(installed, NAME)
    exported.write_text(json.dumps({**json.loads(exported.read_text()), "approximate": ["scenes/a.png"]}))
    command = CollectCommand(suite="libero_goal", out=installed / "demos", physics_version="current")
    tasks = load_tasks("libero_goal", era="current")
    info: Any = SimpleNamespace(cameras=(), image_shape=(64, 64), simulator="native", renderer="raster")
    settings = _settings(command, tasks, info)
    assert settings["stand_in_files"] == 1
    evaluated = of_scenes(suite_named("libero_goal"), tasks)
    assert fingerprint(evaluated, MujocoConfig(), "raster", "cpu", "", None)["stand_in_files"] == 1
    again = _settings(command, [replace(tasks[0], fingerprint="0"), *tasks[1:]], info)
    assert again["bundles"] != settings["bundles"]


def _premises_of(root: Path) -> None:
    """State 1 (evaluated) and state 50 (for training) are not what the task says; nobody can solve 50."""
    task = load_task(root, NAME)
    fallen = (Failure("kept", "bowl 1 falls off the table"),)
    found = Premises(100, {1: (Failure("placed", "bowl 1 is not on plate 1"),), 50: fallen}, (50,), ())
    write_premises(root, NAME, task.fingerprint, task.era, found)


def test_the_published_era_is_the_default_and_stands_in_every_output(
    installed: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := era_library.missing():
        pytest.skip(reason)
    (tmp_path / "era").symlink_to(era_library.CACHE / "era")
    run, auto = tmp_path / "run", words(checkpoint, tmp_path / "run", "--protocol", "native")
    assert main([word for word in auto if word not in ("--env.physics-version", "current")]) == 0
    assert "physics   mujoco-3.3 (published)" in capsys.readouterr().out
    (info,) = json.loads((run / "run.json").read_text())
    assert info["simulator"]["physics_version"] == "mujoco-3.3"
    assert info["simulator"]["name"] == f"native-mujoco {mujoco.__version__}, era mujoco-3.3"
    assert "  physics_version: mujoco-3.3\n" in (run / "config.yaml").read_text()
    (policy,) = (run / "checkpoints").glob("*/policy")
    assert read_provenance(policy)["era"] == "mujoco-3.3"
    judge = ["eval", "libero", "--suite", "goal", "--tasks", NAME.partition("/")[2], "--checkpoint", str(run)]
    judge += ["--states-per-task", "1", "--env.renderer", "raycast", "--videos", "0", "--env.num-envs", "1"]
    assert main([*judge, "--output", str(tmp_path / "eval"), "--env.physics-version", "current"]) == 0
    words_of_both = "current (this MuJoCo's own, not that of published scores); the policy was trained under mujoco-3.3"
    assert words_of_both in capsys.readouterr().out
    report = json.loads((tmp_path / "eval" / "report.json").read_text())
    assert report["simulator"]["physics_version"] == report["fingerprint"]["era"] == "current"
    assert report["trained_physics_version"] == "mujoco-3.3"
    assert report["deviations"][0].startswith("physics version current: ")
    assert words_of_both.replace("'", "&#39;") in (tmp_path / "eval" / "report.html").read_text()
    assert main([*judge, "--output", str(tmp_path / "eval"), "--env.physics-version", "published"]) == 2, (
        "another evaluation"
    )
    assert main([*judge, "--env.physics-version", "mujoco-2.3.8"]) == 2
    assert "mujoco-2.3.7" in capsys.readouterr().err


def test_without_the_old_library_nothing_is_written_and_the_way_out_is_named(
    installed: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([word for word in words(checkpoint, run) if word not in ("--env.physics-version", "current")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "--env.physics-version current" in line
    assert not run.exists()
    assert main(["train", "tabletop", "--env.physics-version", "published", "--output", str(run)]) == 2
    assert "tabletop_spatial was made for this MuJoCo" in capsys.readouterr().err


def test_training_on_the_evaluated_states_is_said_everywhere(installed: Path, checkpoint: Path, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.mkdir()
    for file in checkpoint.iterdir():
        (known / file.name).write_bytes(file.read_bytes())
    (known / "provenance.json").write_text(json.dumps({"train_states": {}}))
    (known / "checksums.json").unlink()
    _premises_of(installed)
    task = load_task(installed, NAME)
    for split, shared in (("train", 0), ("heldout", 2)):
        run = tmp_path / split
        assert main(words(known, run, "--train-states", split, "--protocol", "native")) == 0
        (info,) = json.loads((run / "run.json").read_text())
        assert (info["overlap"]["shared"], info["overlap"]["episodes"]) == (shared, 2)
        assert (info["left_out_states"], info["train_states"]) == (1, 50)
        (policy,) = (run / "checkpoints").glob("*/policy")
        rows = list(task.heldout_states if split == "heldout" else task.train_states)
        assert read_provenance(policy)["train_states"] == {NAME: rows}


def test_a_task_that_nobody_can_solve_is_refused_with_the_command_that_says_why(
    installed: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, rows = load_task(installed, NAME), range(50, 100)
    fallen = {row: (Failure("kept", "bowl 1 falls off the table"),) for row in rows}
    write_premises(installed, NAME, task.fingerprint, task.era, Premises(100, fallen, tuple(rows), ()))
    run, short = tmp_path / "run", NAME.partition("/")[2]
    collect = [
        "collect",
        "libero_goal",
        "--tasks",
        short,
        "--physics-version",
        "current",
        "--out",
        str(tmp_path / "demos"),
    ]
    for command in (words(checkpoint, run), collect):
        assert main(command) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert f"'{NAME}' has no initial state to train on: nobody can solve any of its 50" in line
        assert "embodied-rl doctor libero --suite libero_goal --states train --physics-version current." in line
    assert not run.exists()
    assert main(words(checkpoint, run, "--train-states", "heldout", "--protocol", "native")) == 0


def test_libero_is_drawn_as_officially_and_the_tabletop_plainly(installed: Path) -> None:
    from embodied_rl.factory.scenes import pick_render_quality
    from embodied_rl.sim.tabletop import load_suite

    official, ours = [load_task(installed, NAME)], load_suite("tabletop_goal")[:1]
    assert (pick_render_quality("auto", official), pick_render_quality("auto", ours)) == ("exact", "fast")
    assert (pick_render_quality("fast", official), pick_render_quality("exact", ours)) == ("fast", "exact")


def test_frames_and_an_era_that_are_not_official_are_deviations(installed: Path) -> None:
    from embodied_rl.jobs.evaluation_setup import scene_deviations
    from embodied_rl.sim.tabletop import load_suite

    current = [load_task(installed, NAME)]
    assert [line.partition(":")[0] for line in scene_deviations(current, "fast")] == [
        "fast frames",
        "physics version current",
    ]
    assert [line.partition(":")[0] for line in scene_deviations(current, "exact")] == ["physics version current"]
    assert scene_deviations(load_suite("tabletop_goal"), "fast") == []


def test_the_report_marks_states_that_are_not_what_the_task_says(
    installed: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(PROTOCOLS["openvla"], horizons=dict.fromkeys(PROTOCOLS["openvla"].horizons, 8))
    monkeypatch.setitem(PROTOCOLS, "openvla", short)
    _premises_of(installed)
    folder = tmp_path / "e"
    command = [
        *("eval", "libero", "--suite", "goal", "--tasks", NAME.partition("/")[2], "--protocol", "openvla"),
        *("--states-per-task", "2", "--checkpoint", str(checkpoint), "--output", str(folder), "--videos", "0"),
        *("--env.num-envs", "2", "--env.num-threads", "1", "--env.renderer", "raycast", "--no-at-end"),
        *("--env.physics-version", "current"),
    ]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "FAIL in 1 of 2 initial states, of 1 task " in said
    assert "; physics version current: this MuJoCo's own" in said
    assert "1 state" in said
    figures = json.loads((folder / "report.json").read_text())
    assert figures["failed_premises"] == {NAME: {"1": ["bowl 1 is not on plate 1"]}}
    page = (folder / "report.html").read_text()
    assert "<td>1</td><td>bowl 1 is not on plate 1</td><td>failure</td>" in page
    assert ">1 state</td>" in page
    assert "falls off" not in page, "a training state is none of an evaluation's business"


def _says_all_are_official(root: Path) -> None:
    """An installation that knows both tasks as libero_goal's."""
    suites = {"libero_goal": [NAME, OTHER]}
    (root / "manifest.json").write_text(json.dumps({"format": 1, "assets": "", "suites": suites, "missing": {}}))


def test_a_suite_that_is_partly_there_does_not_pass_for_the_suite(
    installed: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _says_all_are_official(installed)
    assert len(load_tasks("libero_goal", era="current")) == 2
    (installed / "tasks" / f"{OTHER}.json").unlink()
    for command in (
        ["train", "libero", "--suite", "goal", "--policy.checkpoint", str(checkpoint)],
        ["eval", "libero", "--suite", "goal", "--checkpoint", str(checkpoint)],
        ["collect", "libero_goal", "--out", str(installed.parent / "demos")],
    ):
        assert main([*command, "--env.physics-version", "current"] if command[0] != "collect" else command) == 2
        said = capsys.readouterr().err
        assert "suite 'libero_goal' is only partly installed, 1 of 2 tasks" in said
        assert said.count("\n") == 1
    short = NAME.partition("/")[2]
    assert [task.name for task in load_tasks("libero_goal", short, "current")] == [NAME]
    _premises_of(installed)
    for suite in ([], ["--suite", "goal"]):
        assert main(["doctor", "libero", *suite, "--physics-version", "current"]) == 1
        assert "libero_goal lacks 1 of its tasks; run: embodied-rl assets install libero" in capsys.readouterr().err


def test_doctor_says_which_premises_hold(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (installed / "tasks" / f"{OTHER}.json").unlink()
    _premises_of(installed)
    assert main(["doctor", "libero", "--suite", "goal", "--physics-version", "current"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "every precondition holds in 49 of 50 official evaluation states, in all states of 0 of 1 tasks" in said
    assert "state 1: bowl 1 is not" in said
    assert "libero_goal under current: states in which each precondition holds" in said
    assert "under current every precondition holds" in said
    assert "whole every precondition holds kept nothing" in said
    assert main(["doctor", "libero", "--states", "train", "--json", "--physics-version", "current"]) == 1
    ((row,),) = json.loads(capsys.readouterr().out).values()
    assert (row["era"], row["states"], row["whole"], row["left_out"]) == ("current", 50, 49, [50])
    assert row["holds"] == {"kept": 49, "landed": 50, "placed": 50, "rests": 50, "open": 50}
    task = load_task(installed, NAME)
    write_premises(installed, NAME, task.fingerprint, task.era, Premises(100, {}, (), ()))
    assert main(["doctor", "libero", "--physics-version", "current"]) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--suite", "gaol"], "unknown suite 'gaol' of libero"),
        (["--suite", "goal", "--tasks", "no_such"], "has no task 'no_such'"),
        (["--suite", "90"], "suite 'libero_90' is not installed"),
        (["--states", "all"], "--states"),
        (["--policy", "x"], "unknown option '--policy'"),
    ],
)
def test_what_doctor_refuses(
    installed: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "libero", "--physics-version", "current", *given]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_doctor_looks_for_a_task_in_every_suite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    for name in ("libero_goal/a", "libero_goal/b", "libero_spatial/c", "libero_goal_lan/a"):
        path = tmp_path / "libero" / "tasks" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert asked_suites(LiberoDoctorConfig()) == {"libero_spatial": (), "libero_goal": (), "libero_goal_lan": ()}
    assert asked_suites(LiberoDoctorConfig(tasks=("a",))) == {"libero_goal": ("a",), "libero_goal_lan": ("a",)}
    assert asked_suites(LiberoDoctorConfig(tasks=("b", "c"))) == {"libero_spatial": ("c",), "libero_goal": ("b",)}
    assert asked_suites(LiberoDoctorConfig(tasks=("b", "no_such"))) == {"libero_spatial": ("no_such",)}
    assert asked_suites(LiberoDoctorConfig(suite="goal", tasks=("c",))) == {"libero_goal": ("c",)}


def test_doctor_names_the_published_era() -> None:
    row = Row(NAME, "mujoco-3.3", states=50, whole=50, holds={}, failures={}, left_out=(), unjudged=())
    (line,) = _summary([row], "heldout")
    assert line.startswith("under published (mujoco-3.3) every precondition holds in 50 of 50")


def test_tasks_that_do_not_fit_on_a_line_are_listed_with_their_numbers(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "tasks" / f"{NAME}.json").unlink()
    monkeypatch.setattr("embodied_rl.factory.tasks._LINE", 10)
    with pytest.raises(UserError) as caught:
        load_tasks("libero_goal", "1", "current")
    assert str(caught.value).endswith("has no task '1'. Tasks go by name; number 1 is 'put_the_bowl_on_the_stove'.")
    with pytest.raises(UserError) as caught:
        load_tasks("libero_goal", "3", "current")
    assert str(caught.value).splitlines() == [
        "suite 'libero_goal' has no task '3'. Give one of these names:",
        "  1  put_the_bowl_on_the_stove",
    ]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_doctor_without_libero_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    assert main(["doctor", "libero"]) == 2
    assert "run: embodied-rl assets install libero" in capsys.readouterr().err


def test_a_suite_without_a_start_of_its_own_says_how_to_make_one(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["train", "libero", "--suite", "10", "--output", str(run)]) == 2  # not among the installed ones
    said = capsys.readouterr().err
    assert (
        "no policy for libero_10 ships with the package: name a checkpoint (--policy.checkpoint), or make one" in said
    )
    assert "embodied-rl collect libero_10 --out demos, then embodied-rl sft demos" in said
    assert not run.exists()
