"""`embodied-rl eval BENCHMARK`: what it writes, that it resumes, and that bad input is one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.cli.eval import checked
from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import task_digest
from embodied_rl.factory.view import View
from embodied_rl.jobs.eval_request import BenchmarkCommand, request_of, suite_name
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import ChunkResult, EpisodeSpec
from tests.embodied_rl.rewording import reword
from tests.embodied_rl.stand_in import HORIZON, StandIn

TASKS = [task.name for task in load_suite("tabletop_object")]


class World(StandIn):
    """A stand-in of any picture size; `started` collects the episodes of all of them. interrupt: steps until Ctrl-C."""

    started: list[EpisodeSpec] = []  # noqa: RUF012
    sizes: list[int] = []  # noqa: RUF012
    interrupt = -1

    def __init__(self, num_envs: int, size: int, cameras: int) -> None:
        super().__init__(num_envs, size, cameras)
        World.sizes.append(size)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        World.started += episodes

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        World.interrupt -= 1
        if World.interrupt == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(env_ids, actions)


def open_world(tasks: Any, config: Any, view: View) -> World:
    assert view.stop_at_success is False
    assert view.cameras is not None
    return World(config.num_envs, view.image_size, view.cameras)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> type[World]:
    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", open_world)
    World.started, World.sizes, World.interrupt = [], [], -1
    return World


def words(folder: Path, *more: str) -> list[str]:
    start = ["eval", "tabletop", "--suite", "object", "--states-per-task", "2", "--videos", "2", "--env.num-envs", "3"]
    return [*start, "--output", str(folder), *more]


def figures(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A finished evaluation without videos, which tests copy; and how often its world stepped."""
    folder, World.interrupt = tmp_path_factory.mktemp("evaluated") / "e", -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embodied_rl.factory.scenes._simulated", open_world)
        assert main(words(folder, "--videos", "0")) == 0
    return folder, -1 - World.interrupt


def test_an_evaluation_writes_everything_and_resuming_a_finished_one_runs_nothing(
    world: type[World], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "e", tmp_path / "f.json"
    assert main(words(folder, "--json", str(file))) == 0
    found = figures(folder)
    assert json.loads(file.read_text()) == found
    episodes = [(row["result"]["spec"]["task"], row["result"]["spec"]["init_state"]) for row in found["episodes"]]
    assert Counter(episodes) == Counter((task, row) for task in TASKS for row in (50, 51))
    first_round = {spec.task for spec in world.started[:3]}
    assert len(first_round) == 3  # three envs, three tasks
    assert found["overall"]["once"]["episodes"] == 2 * len(TASKS)
    assert found["overall"]["at_end"] is not None
    assert set(found["tasks"]) == set(TASKS)
    assert found["fingerprint"]["driver"] == "none (CPU ray caster)"
    assert found["fingerprint"]["bundles"] == {task.name: task_digest(task) for task in load_suite("tabletop_object")}
    assert found["overlap"] == {"seen": {}, "shared": 0, "episodes": 2 * len(TASKS)}
    page = (folder / "report.html").read_text()
    assert "success at end" in page
    failed = sum(not row["result"]["success"] for row in found["episodes"])
    assert page.count("<video") == min(2, failed) == len(list((folder / "videos").glob("*.mp4")))
    said = capsys.readouterr().out
    assert "all tasks" in said
    assert "none: no evaluated episode" in said
    assert "trained   on tabletop_spatial" in said, "another suite than the evaluated one"
    assert found["trained_suite"] == "tabletop_spatial"
    assert "report: " in said

    count = len(world.started)
    assert main(["eval", "--resume", str(folder)]) == 0
    assert len(world.started) == count  # not even the videos again
    assert figures(folder) | {"command": ""} == found | {"command": ""}


def test_ctrl_c_saves_and_resuming_finishes_whatever_the_words(
    world: type[World], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(words(whole, "--mode", "sample", "--videos", "0")) == 0
    expected = figures(whole)["episodes"]
    world.interrupt = 7
    assert main(words(parts, "--mode", "sample", "--videos", "0")) == 130
    said = capsys.readouterr().err
    assert f"continue with: embodied-rl eval --resume {parts}" in said
    done = (parts / "episodes.jsonl").read_text().count("\n")
    assert 0 < done < len(expected)
    assert not (parts / "report.json").exists()
    world.started.clear()
    reword(monkeypatch)  # no sentence decides whether it may go on, or what it is comparable with
    assert main(["eval", f"--resume={parts}"]) == 0
    assert len(world.started) == len(expected) - done
    assert figures(parts)["episodes"] == expected
    assert figures(parts)["fingerprint"] == figures(whole)["fingerprint"]


@pytest.mark.parametrize("videos", [0, 1])
def test_ctrl_c_while_failures_are_recorded_leaves_the_report_and_the_videos_made(
    videos: int, world: type[World], evaluated: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, (whole, steps) = tmp_path / "parts", evaluated
    world.interrupt = steps + videos * HORIZON + HORIZON // 2  # a video steps one by one
    assert main(words(parts)) == 130
    shown = capsys.readouterr()
    assert f"for that: embodied-rl eval --resume {parts}" in shown.err
    assert "all tasks" in shown.out
    assert f"recording failure {videos + 1} of 2" in shown.out
    assert figures(parts)["episodes"] == figures(whole)["episodes"]
    assert (parts / "report.html").read_text().count("<video") == videos == len(list((parts / "videos").glob("*.mp4")))
    world.started.clear()
    assert main(["eval", "--resume", str(parts)]) == 0
    assert len(world.started) == 2 - videos, "only the videos that are missing"
    assert (parts / "report.html").read_text().count("<video") == 2


def test_a_protocol_sets_the_frames_and_says_where_the_policy_differs(
    world: type[World], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "e"
    assert main(words(folder, "--protocol", "openvla_oft", "--no-at-end", "--tasks", TASKS[0].partition("/")[2])) == 0
    assert world.sizes == [256]
    found = figures(folder)
    assert found["protocol"]["horizons"]["object"] == 280
    assert found["overall"]["at_end"] is None
    assert "picture side: 64 (the protocol's policies: 224)" in found["deviations"]
    assert "not measured" in (folder / "report.html").read_text()


def test_a_folder_is_not_continued_with_another_driver(
    world: type[World],
    evaluated: tuple[Path, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(evaluated[0], tmp_path / "e")
    assert main(words(tmp_path / "e", "--seed", "1")) == 2
    assert "holds another evaluation" in capsys.readouterr().err
    monkeypatch.setattr("embodied_rl.jobs.fingerprint.driver", lambda renderer: "llvmpipe 99")
    assert main(["eval", "--resume", str(tmp_path / "e")]) == 2
    said = capsys.readouterr().err
    assert "was begun with driver none (CPU ray caster), and here it is llvmpipe 99" in said
    assert said.count("\n") == 1


def test_the_overlap_with_what_a_checkpoint_was_trained_on(
    world: type[World], checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = tmp_path / "trained"
    trained.mkdir()
    for path in checkpoint.iterdir():
        (trained / path.name).write_bytes(path.read_bytes())
    (trained / "checksums.json").unlink()
    (trained / "provenance.json").write_text(json.dumps({"train_states": {TASKS[0]: [51, 52], TASKS[1]: [7]}}))
    assert main(words(tmp_path / "e", "--checkpoint", str(trained), "--videos", "0")) == 0
    found = figures(tmp_path / "e")
    assert found["overlap"] == {"seen": {TASKS[0]: [51]}, "shared": 1, "episodes": 2 * len(TASKS)}
    assert found["unseen"]["once"]["episodes"] == 2 * len(TASKS) - 1
    assert f"1 of {2 * len(TASKS)} episodes start from a state that was trained on" in capsys.readouterr().out


def test_a_perturbed_evaluation_in_the_real_simulator(tmp_path: Path) -> None:
    folder, task = tmp_path / "e", TASKS[0].partition("/")[2]
    command = words(
        folder,
        "--tasks",
        task,
        "--states-per-task",
        "1",
        "--no-at-end",
        "--videos",
        "1",
        "--perturb",
        "camera",
        "light",
        "texture",
        "object",
        "instruction",
        "--env.num-threads",
        "1",
    )
    assert main(command) == 0
    (row,) = figures(folder)["episodes"]
    assert set(row["perturbation"]) == {"camera", "light", "texture", "object", "instruction"}
    assert row["result"]["spec"]["task"] == TASKS[0]
    assert row["result"]["num_steps"] <= 150
    assert "perturbed" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("eval libre", "unknown benchmark 'libre'. Did you mean 'libero'?"),
        ("eval libero --suite spatial", "LIBERO's official assets are not installed"),
        ("eval libero --suite 10", "no policy for libero_10 ships with the package: name a checkpoint (--checkpoint)"),
        ("eval libero --suite 90 --checkpoint shipped", "embodied-rl collect libero_90 --out demos, then embodied-rl"),
        ("eval --suite libero_10_swap", "no policy for libero_10_swap ships with the package"),
        ("eval libero --suite spatail", "unknown suite 'spatail' of libero. Did you mean 'spatial'?"),
        ("eval tabletop --tasks no_such", "suite 'tabletop_spatial' has no task 'no_such'."),
        ("eval tabletop --protocol openpii", "unknown protocol 'openpii'. Did you mean 'openpi'?"),
        ("eval tabletop --policy opnvla", "unknown policy 'opnvla'. Did you mean 'openvla'?"),
        ("eval tabletop --policy .", "Name a checkpoint with --checkpoint."),
        ("eval tabletop --perturb camra", "unknown perturbation 'camra'. Did you mean 'camera'?"),
        ("eval tabletop --perturb camera --perturb-level -1", "--perturb-level must be at least 0"),
        ("eval tabletop --states-per-task 51", "has 50 such states"),
        ("eval tabletop --states-per-task 0", "--states-per-task must be at least 1"),
        ("eval tabletop --videos -1", "--videos must be at least 0"),
        ("eval tabletop --seed -1", "--seed must be at least 0"),
        ("eval tabletop --json /no/such/folder/f.json", "--json: cannot write"),
        ("eval tabletop --checkpoint /no/such/folder", "no checkpoint at /no/such/folder"),
        ("eval tabletop --output /proc/x", "cannot write into /proc/x"),
        ("eval tabletop --protocl openpi", "unknown option '--protocl'. Did you mean '--protocol'?"),
        ("eval tabletop --task no_such", "suite 'tabletop_spatial' has no task 'no_such'."),
        ("eval tabletop --task a --tasks b", "--task and --tasks are the same option"),
        ("eval tabletop_goal --suite goal", "tabletop_goal is a suite already: leave --suite out."),
        ("eval tabletop_goal --task no_such", "suite 'tabletop_goal' has no task 'no_such'."),
        ("eval tabletop --env.randomize-color 5 --output e", "--env.randomize-color is a share in [0, 1), got 5."),
        ("eval metaworld --videos 1", "eval metaworld needs a policy: --checkpoint DIR"),
        ("eval gymnasium --suite goal --checkpoint .", "gymnasium is a suite already: leave --suite out"),
        ("eval gymnasium --task Pendulum-v1 --perturb light --checkpoint .", "--perturb does not apply to suite 'gymn"),
        ("eval gymnasium --task Pendulum-v1 --checkpoint shipped", "eval gymnasium needs a policy: --checkpoint DIR"),
        ("eval --resume", "--resume takes a folder"),
        ("eval --resume /x --seed 1", "--resume takes a folder and nothing else"),
        ("eval --resume /no/such/folder", "is not the folder of an evaluation"),
    ],
)
def test_bad_input_is_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("embodied-rl: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_folder_that_is_no_checkpoint_is_named_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.json").write_text("{}")
    command = ["eval", "tabletop", "--output", str(tmp_path / "e"), "--checkpoint", str(tmp_path)]
    assert main(command) == 2
    assert f"{tmp_path} is neither a checkpoint nor a run folder" in capsys.readouterr().err
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert main(command) == 2
    assert f"{tmp_path / 'config.json'} is missing" in capsys.readouterr().err
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "run.json").write_text("[]")
    assert main(command) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err


def test_what_is_refused_before_its_first_episode_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The simulator refuses after the folder is claimed: a resume would be refused again."""

    def refuse(*_: Any, **__: Any) -> None:
        raise UserError("no such simulator here")

    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", refuse)
    (tmp_path / "mine").mkdir()
    for folder in (tmp_path / "mine", tmp_path / "new" / "e"):
        assert main(words(folder)) == 2
        assert "no such simulator here" in capsys.readouterr().err
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"], "what was there stays"


def test_an_older_request_that_no_longer_fits_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evaluation.json").write_text(json.dumps({"request": {"benchmark": "tabletop", "options": {"x": 1}}}))
    assert main(["eval", "--resume", str(tmp_path)]) == 2
    assert "begun by another version" in capsys.readouterr().err


def test_files_are_recorded_by_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an evaluation can be resumed from another folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    command = BenchmarkCommand(tokenizer="tokenizer.json", statistics=".", output="e")
    options = request_of("tabletop", checked("tabletop", command))["options"]
    assert options["tokenizer"] == str(tmp_path / "tokenizer.json")
    assert options["statistics"] == str(tmp_path)
    assert not (tmp_path / "e").exists()


def test_evaluations_begun_in_one_second_write_into_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260101-000000")
    outputs = set()
    for process in (1, 2):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        outputs.add(checked("tabletop", BenchmarkCommand()).output)
    assert len(outputs) == 2


@pytest.mark.parametrize(
    ("benchmark", "suite", "expected"),
    [
        ("libero", "spatial_swap", "shipped:libero_spatial"),
        ("libero", "goal", "shipped:libero_goal"),
        ("tabletop", "long", "shipped"),
    ],
)
def test_a_suite_is_evaluated_with_the_shipped_policy_made_for_it(
    benchmark: str, suite: str, expected: str, tmp_path: Path
) -> None:
    command = BenchmarkCommand(suite=suite, output=str(tmp_path / "e"))
    assert checked(benchmark, command).checkpoint == expected


def test_suite_names() -> None:
    assert suite_name("libero", "spatial") == suite_name("libero", "libero_spatial") == "libero_spatial"
    assert suite_name("libero", "long") == suite_name("libero", "10") == "libero_10"
    assert suite_name("tabletop", "long") == "tabletop_long"
