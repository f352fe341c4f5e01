"""`export`, cards and the Hugging Face hub: a card says what fields say, and commands take what was uploaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied_rl.cli import deploy, main
from embodied_rl.cli.deploy import DeployCommand
from embodied_rl.cli.eval import EVALUATED, QUICK, _on_its_suite
from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.data.lerobot import fingerprint
from embodied_rl.data.metadata import read_metadata
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import Tally
from embodied_rl.evaluation.evaluate import EvalReport, Score
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.factory.made_for import family_name, import_modules_of, is_published_format, simulator_for, suite_of
from embodied_rl.factory.policies import open_policy, policy_folder, policy_info, save_policy
from embodied_rl.jobs import check_policy
from embodied_rl.jobs.cards import evaluations_of, run_of
from embodied_rl.jobs.checks import DoctorConfig
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.policies.checkpoints.integrity import file_sha256
from embodied_rl.telemetry.observer import evaluation_path
from tests.embodied_rl.data.by_hand import ByHand, make
from tests.hub import Hub, opened
from tests.run_info import eval_info, run_info

TASK = "tabletop_object/pick_up_the_mug_and_place_it_in_the_basket"
DEMOS = {"path": f"lab/mugs@{'a' * 40}", "sha256": "b" * 64, "episodes": 20, "frames": 900}


def _score(successes: int, episodes: int, **changes: Any) -> Score:
    low, high = wilson(successes, episodes)
    return replace(Score(successes, episodes, low, high, 16.0, 0.5, 0.5), **changes)


@pytest.fixture(scope="module")
def start(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that says what it learned from."""
    folder = tmp_path_factory.mktemp("imitated") / "start"
    said = {"command": "embodied-rl sft mugs --out start", "suite": "tabletop_object", "era": "current", "seed": 3}
    said |= {"dataset": DEMOS, "checkpoint": {"path": "lab/base@main"}, "train_states": {TASK: [1]}}
    save_policy(open_policy(str(checkpoint), "cpu"), folder, said)
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with opened(tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    return make(tmp_path / "demos", ByHand())


def _evaluation(folder: Path, digest: str | None, *tallies: Tally, **changes: Any) -> Path:
    """An evaluation's folder: the score of all tasks, then of one."""
    overall, task = (*tallies, *tallies)[:2]
    folder.mkdir()
    info = eval_info(suite="tabletop_object", policy=replace(eval_info().policy, digest=digest), **changes)
    found = {"overall": asdict(overall), "tasks": {TASK: asdict(task)}, "episodes": []}
    (folder / "report.json").write_text(json.dumps(asdict(info) | found))
    (folder / "report.html").write_text("<p>report</p>")
    return folder


def _digest(checkpoint: Path) -> str | None:
    return policy_info(open_policy(str(checkpoint), "cpu"), str(checkpoint)).digest


def _export(source: Path | str, out: Path, *words: str) -> int:
    return main(["export", "--checkpoint", str(source), "--layout", "native", "--out", str(out), *words])


def _card(folder: Path) -> tuple[dict[str, Any], str]:
    """Metadata and text of a card."""
    start, front, text = (folder / "README.md").read_text().split("---\n", 2)
    assert start == ""
    return yaml.safe_load(front), text


def test_a_card_says_what_the_checkpoint_says_and_that_nothing_was_evaluated(start: Path, tmp_path: Path) -> None:
    assert _export(start, tmp_path / "out") == 0
    front, text = _card(tmp_path / "out")
    assert front == {
        "base_model": "lab/base",
        "datasets": ["lab/mugs"],
        "library_name": "embodied-rl",
        "pipeline_tag": "robotics",
        "tags": ["robotics", "embodied-rl", "openvla"],
    }
    assert "\nNot evaluated: there was no evaluation of these weights" in text
    assert "| suite | tabletop_object |\n| tasks | pick up the mug and place it in the basket |\n" in text
    assert f"| lab/mugs | 20 | 900 | {'b' * 64} |\n" in text
    assert f"\nembodied-rl sft mugs --out start\nembodied-rl export --checkpoint {start} --layout native --out" in text
    assert f"| model.safetensors | {file_sha256(tmp_path / 'out' / 'model.safetensors')} |\n" in text
    assert f"| SHA-256 before the export | {_digest(start)} |\n" in text


def test_scores_are_those_of_the_evaluations_that_are_named(start: Path, tmp_path: Path) -> None:
    first = _evaluation(tmp_path / "a", _digest(start), Tally(_score(9, 12), _score(7, 12)), Tally(_score(3, 4), None))
    lost = Tally(_score(5, 12, not_measured=2), None)
    perturbed = _evaluation(tmp_path / "b", _digest(start), lost, perturb=("light",), deviations=("a|b",))
    words = ["--license", "apache-2.0", "--evaluations", str(first), str(perturbed)]
    assert _export(start, tmp_path / "out", *words) == 0
    front, text = _card(tmp_path / "out")
    assert front["license"] == "apache-2.0"
    (index,) = front["model-index"]
    assert index["name"] == "out"
    (result,) = index["results"]
    assert result["task"] == {"type": "robotics"}
    assert [(each["type"], each["value"], each["args"]["episodes"]) for each in result["metrics"]] == [
        ("success_rate", 0.75, 12),
        ("success_rate_at_end", 0.5833, 12),
        ("success_rate", 0.4167, 12),
    ]
    args = {"protocol": "native", "physics_version": "current", "states": "heldout", "mode": "greedy", "episodes": 12}
    assert result["metrics"][0]["args"] == args | {"interval_95": [0.4677, 0.9111]}
    assert result["metrics"][2]["args"]["perturb"] == ["light"]
    assert "| all tasks | 75.0% (9/12) | 46.8% to 91.1% | 58.3% (7/12) | 32.0% to 80.7% |\n" in text
    assert "| pick up the mug and place it in the basket | 75.0% (3/4) | 30.1% to 95.4% | not measured |  |\n" in text
    assert "| all tasks | 41.7% (5/12) | 19.3% to 68.0%, not measured: 2 of 14 |\n" in text
    assert "| deviations | a\\|b |\n" in text
    assert "Not evaluated" not in text
    for name in ("report.json", "report.html"):
        assert (tmp_path / "out/reports/1-tabletop_object" / name).read_bytes() == (first / name).read_bytes()
    assert "[report.html](reports/2-tabletop_object/report.html)" in text


def test_tasks_without_a_goal_have_a_mean_return(start: Path, tmp_path: Path) -> None:
    score = _score(0, 12, has_success=False, mean_return=-3.5, return_std=1.0)
    folder = _evaluation(tmp_path / "a", _digest(start), Tally(score, None))
    assert _export(start, tmp_path / "out", "--evaluations", str(folder)) == 0
    front, text = _card(tmp_path / "out")
    (metric,) = front["model-index"][0]["results"][0]["metrics"]
    assert (metric["type"], metric["value"]) == ("mean_return", -3.5)
    assert "| | mean return | 95 % interval |\n" in text


def test_a_run_is_measured_by_its_own_evaluation_of_that_checkpoint(start: Path, tmp_path: Path) -> None:
    run, config = tmp_path / "run", TrainConfig(iterations=3, suite="tabletop_object")
    for updates in (2, 3):
        shutil.copytree(start, run / f"checkpoints/iter-{updates:06d}/policy")
    (run / "config.yaml").write_text(dump_yaml(config))
    sessions = [run_info(), run_info(command="embodied-rl train --resume run")]
    (run / "run.json").write_text(json.dumps([asdict(session) for session in sessions]))
    path = evaluation_path(run, 2)
    path.parent.mkdir()
    path.write_text(json.dumps(EvalReport("sample", _score(6, 8), {TASK: _score(3, 4)}, []).to_json()))
    evaluated, newer = (run / f"checkpoints/iter-{updates:06d}/policy" for updates in (2, 3))
    (found,) = evaluations_of(evaluated, run_of(evaluated), (), None)
    assert (found.suite, found.overall.once.rate, found.tasks[TASK].once.rate) == ("tabletop_object", 0.75, 0.75)
    assert found.settings["mode"] == "sample"
    assert evaluations_of(newer, run_of(newer), (), None) == []
    assert _export(evaluated, tmp_path / "out") == 0
    _, text = _card(tmp_path / "out")
    assert "\nembodied-rl train tabletop\nembodied-rl train --resume run\nembodied-rl export" in text
    assert "| all tasks | 75.0% (6/8) |" in text
    assert run_of(start) is None


def test_a_card_that_cannot_be_made_leaves_nothing(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = _evaluation(tmp_path / "other", "f" * 16, Tally(_score(9, 12), None))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "report.json").write_text("{}")
    for folder, problem in (
        (other, "measured other weights"),
        (tmp_path, "it has no"),
        (tmp_path / "broken", "damaged"),
    ):
        assert _export(start, tmp_path / "out", "--evaluations", str(folder)) == 2
        error = capsys.readouterr().err
        assert problem in error
        assert error.count("\n") == 1
    monkeypatch.setattr("embodied_rl.jobs.cards.replace_text", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _export(start, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_policy_goes_to_the_hub_and_comes_back_as_what_it_is(
    hub: Hub, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = _evaluation(tmp_path / "a", _digest(start), Tally(_score(9, 12), None))
    assert _export(start, tmp_path / "out", "--push", "lab/policy", "--private", "--evaluations", str(folder)) == 0
    assert f"uploaded to {hub.address}/lab/policy\n" in capsys.readouterr().out
    there = hub.repositories["models/lab/policy"]
    assert there.private
    assert {"README.md", "model.safetensors", "reports/1-tabletop_object/report.html"} < set(there.files)
    assert b'erl.load_policy("lab/policy")' in there.files["README.md"]
    assert suite_of("lab/policy") == "tabletop_object"
    assert family_name("lab/policy") == "openvla"
    assert not is_published_format("lab/policy"), "ours is no published format, wherever it is"
    quick = QUICK.__class__(suite=QUICK.suite, checkpoint="lab/policy")
    assert _on_its_suite(quick, [], EVALUATED).suite == "tabletop_object"
    assert not [line for line in hub.asked if "resolve" in line and "safetensors" in line]
    assert _digest(policy_folder("lab/policy")) == _digest(tmp_path / "out")
    assert simulator_for("lab/policy", "gymnasium") == simulator_for(str(tmp_path / "out"), "gymnasium")
    there.files["provenance.json"] = json.dumps({"suite": "x", "config": {"imports": ["no_such_module"]}}).encode()
    import_modules_of("lab/policy")  # nothing that a stranger names


def test_an_upload_that_cannot_be_does_not_begin_with_the_export(
    hub: Hub, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuse = "whoami"
    for words, problem in (
        (["--push", "lab/policy"], "does not answer as it should"),
        (["--push", "policy"], "give OWNER/NAME"),
        (["--private"], "--private is for a repository"),
    ):
        assert _export(start, tmp_path / "out", *words) == 2
        assert problem in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    hub.refuse = "/commit/"
    assert _export(start, tmp_path / "out", "--push", "lab/policy") == 2
    assert "is whole, but lab/policy on the Hugging Face hub does not hold it" in capsys.readouterr().err
    assert (tmp_path / "out" / "README.md").is_file()


def test_a_data_set_goes_to_the_hub_and_comes_back_the_same(
    hub: Hub, demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, meta = fingerprint(demos), read_metadata(demos)
    assert main(["export", str(demos), "--push", "lab/demos", "--license", "mit"]) == 0
    assert f"uploaded to {hub.address}/datasets/lab/demos\n" in capsys.readouterr().out
    there = hub.repositories["datasets/lab/demos"]
    assert there.tags == {"v3.0": there.sha}, "by which LeRobot asks for it"
    front, text = _card(demos)
    assert front == {
        "license": "mit",
        "task_categories": ["robotics"],
        "tags": ["LeRobot", "embodied-rl"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }
    assert f"| episodes | {len(meta.episodes)} |\n" in text
    assert f"| SHA-256 | {before} |\n" in text
    assert all(f"\n- {task}\n" in text for task in meta.tasks.values())
    assert fingerprint(demos) == before, "its card is no part of a data set"
    assert fingerprint(resolve("lab/demos@v3.0", "dataset")) == before
    (demos / "README.md").write_text("---\nlicense: cc-by-4.0\n---\nby hand")
    assert main(["export", str(demos), "--push", "lab/demos"]) == 0
    assert there.files["README.md"].endswith(b"by hand")
    assert there.tags == {"v3.0": there.sha}
    for words, problem in (
        ([], "is a data set already: --push OWNER/NAME uploads it"),
        (["--push", "lab/demos", "--out", "x"], "--out is for recordings and runs"),
        (["--push", "lab/demos", "--steps", "human"], "--steps is for recordings and runs"),
        (["--push", "lab/demos", "--license", "mit"], "stays as it is: name the license in it"),
        ([str(demos), "--push", "lab/demos"], "name the folder of one run or data set"),
    ):
        assert main(["export", str(demos), *words]) == 2
        assert problem in capsys.readouterr().err


def test_a_damaged_data_set_is_not_uploaded(hub: Hub, demos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (demos / "meta" / "tasks.parquet").unlink()
    assert main(["export", str(demos), "--push", "lab/demos"]) == 2
    assert "tasks.parquet" in capsys.readouterr().err
    assert not hub.repositories
    assert not (demos / "README.md").exists()


def test_every_command_takes_a_data_set_of_the_hub(
    hub: Hub, demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that open one by a way of their own; the others ask `read_sources`, which test_sft_any_robot tests."""
    monkeypatch.chdir(tmp_path)
    hub.add("datasets/lab/mugs", demos)
    asked: list[Path] = []
    monkeypatch.setattr("embodied_rl.jobs.reward.train_reward", lambda dataset, *_: asked.append(dataset))
    monkeypatch.setattr("embodied_rl.jobs.reward.write_card", lambda model, dataset, *_: asked.append(dataset))
    assert main(["reward", "train", "lab/mugs", "--out", "model"]) == 0
    assert main(["reward", "card", "model", "lab/mugs@main"]) == 0

    def refuse(dataset: Path, *_: Any) -> None:
        asked.append(dataset)
        raise UserError("seen")

    monkeypatch.setattr("embodied_rl.data.lerobot.load", refuse)
    policy: Any = open_policy("shipped", "cpu")
    with pytest.raises(UserError, match="seen"):
        check_policy._demonstrations(DoctorConfig(dataset="lab/mugs"), policy, tmp_path)
    assert {fingerprint(folder) for folder in asked} == {fingerprint(demos)}
    assert len(asked) == 3
    arm = DeployCommand(robot="fr3", instruction="pick up the mug")
    deploy._check_robot(replace(arm, training_view="lab/mugs"))
    with pytest.raises(UserError, match="lab/none is no folder here"):
        deploy._check_robot(replace(arm, training_view="lab/none"))
