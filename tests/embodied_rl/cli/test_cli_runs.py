"""`embodied-rl runs`: folders written by hand, whose every figure is known; and one that is really trained again."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from embodied_rl.cli import main
from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.configs import get
from embodied_rl.evaluation.evaluate import report
from embodied_rl.jobs.reference_runs import reference_for, reference_runs
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.telemetry.metrics import MetricsLog
from embodied_rl.telemetry.observer import evaluation_path
from embodied_rl.types import EpisodeResult
from tests.embodied_rl.stand_in import untimed
from tests.env_info import env_info
from tests.run_info import ended, run_info

RECIPE = get("tabletop_openvla_ppo")


def write_run(folder: Path, config: TrainConfig, wins: int = 45, *, updates: int = 30, **changes: Any) -> Path:
    """A run that succeeds in the first `wins` of 50 states in the end; its rollouts rise from 0.5 by 0.01 an update.

    changes: of its `RunInfo`.
    """
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_yaml(config))
    info = run_info(**({"end": ended(finished=updates == config.iterations)} | changes))
    (folder / "run.json").write_text(json.dumps([asdict(info)]))
    with MetricsLog(folder / "metrics.jsonl") as log:
        for step in range(updates + 1):
            if step:
                log.write(step, {"rollout/success": 0.5 + 0.01 * step, "rollout/episodes": 128.0})
            if step % 10 == 0:
                count = 30 if step == 0 else wins
                specs = evaluation_specs({"suite/task": range(50)}, 0)
                rows = [EpisodeResult(s, s.init_state < count, True, False, 0.0, 1, 1) for s in specs]
                made = report(specs, {row.spec.episode_id: row for row in rows}, "greedy", env_info("toy", 2))
                log.write(step, made.metrics())
                evaluation_path(folder, step).parent.mkdir(exist_ok=True)
                evaluation_path(folder, step).write_text(json.dumps(made.to_json()))
    return folder


def test_list_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "runs" / "b", replace(RECIPE, seed=7))
    write_run(tmp_path / "runs" / "deep" / "a", RECIPE, updates=15)
    broken = write_run(tmp_path / "runs" / "x", RECIPE)
    (broken / "run.json").write_text("[")
    assert main(["runs", "list", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        *("b", "tabletop_spatial", "openvla", "ppo", "serial"),
        *("7", "30/30", "success", "60.0%", "->", "90.0%", "1.5", "minutes", "finished"),
    ]
    assert lines[2].split()[:1] == ["deep/a"]
    assert lines[2].endswith("not finished")
    assert "is damaged" in lines[3]
    assert main(["runs", "show", str(tmp_path / "runs" / "deep" / "a")]) == 0
    shown = capsys.readouterr().out
    assert "15 of 30" in shown
    assert "60.0% -> 90.0%" in shown
    assert "1.5 minutes" in shown
    assert "2.6 GB at the peak" in shown
    assert "from 50% of the run" in shown
    assert "tabletop_openvla_ppo: 90.1% after 30 updates" in shown


def test_a_list_fits_a_terminal_of_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tabletop_spatial-ppo-seed0-20261129-181412"
    write_run(tmp_path / name, RECIPE)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width, count in ((80, 3), (200, 2)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["runs", "list", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == count
        assert max(map(len, lines)) <= width
        said = " ".join(" ".join(lines).split())
        for part in (name, "tabletop_spatial openvla ppo serial", "30/30", "success 60.0% -> 90.0%", "1.5 minutes"):
            assert part in said


def test_a_run_that_has_not_ended_shows_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One was killed in its first session, the other is not evaluated at all: both are shown, no figure is made up."""
    one, two = write_run(tmp_path / "a", RECIPE, updates=5), write_run(tmp_path / "b", RECIPE, updates=5)
    for folder in (one, two):
        (folder / "run.json").write_text(json.dumps([asdict(run_info())]))
    (two / "metrics.jsonl").write_text("")
    assert main(["runs", "show", str(one)]) == 0
    assert "CPU time    not known" in capsys.readouterr().out
    assert main(["runs", "compare", str(one), str(two)]) == 0
    said = capsys.readouterr().out
    assert f"{one} made 5 of 30 updates and was last evaluated after 0: 60.0%" in said
    assert f"{two} made 0 of 30 updates and was not evaluated yet" in said


@pytest.mark.parametrize(("wins", "inside"), [(45, True), (30, False), (22, False)])
def test_a_run_is_inside_its_recipes_interval_or_not(
    wins: int, inside: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = replace(RECIPE.env, renderer="raycast", physics_version="current")  # what the recipe's 'auto' became
    config = replace(RECIPE, seed=3, env=env, learner=replace(RECIPE.learner, lr=1e-3))
    run = write_run(tmp_path / "run", config, wins)
    assert main(["runs", "compare", str(run)]) == (0 if inside else 1)
    said = capsys.readouterr().out
    assert f"after  30 updates: {wins / 50:.1%}, {'inside' if inside else 'OUTSIDE'} the prediction interval" in said
    assert "learner.lr: 0.001, the recipe has 0.0002" in said
    assert said.count("the recipe has") == 1


def test_two_runs_are_compared_on_the_same_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "a", RECIPE, 45)
    second = write_run(tmp_path / "b", replace(RECIPE, seed=1), 35, machine=replace(run_info().machine, cpu="another"))
    assert main(["runs", "compare", str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert "machine: a CPU, 2 cores and another, 2 cores" in said
    assert "seed: 0 and 1" in said
    assert "90.0% and 70.0%; difference +20.0 points (" in said
    assert "on the same 50 initial states" in said


def test_export_holds_everything(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, RECIPE) for name in ("a", "b")]
    out = tmp_path / "out"
    assert main(["runs", "export", *map(str, runs), "--out", str(out)]) == 0
    records = json.loads((out / "runs.json").read_text())
    assert [record["folder"] for record in records] == [str(run) for run in runs]
    assert records[0]["evaluations"]["30"]["eval/success"] == 0.9
    table = pq.read_table(out / "metrics.parquet").to_pylist()
    assert {"run": str(runs[1]), "step": 10, "name": "rollout/success", "value": 0.6} in table


@pytest.mark.usefixtures("stand_in")
def test_rerun_trains_the_same_again(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = tmp_path / "again"
    assert main(["runs", "rerun", str(finished), "--output", str(again)]) == 0
    assert untimed(finished) == untimed(again)
    assert "difference +0.0 points" in capsys.readouterr().out


def test_reference_runs_are_found_for_what_trains_the_same_alone() -> None:
    for name in reference_runs():
        reference = reference_for(get(name))
        assert reference is not None
        assert reference.recipe == name
    assert reference_for(replace(RECIPE, suite="tabletop_goal")) is None
    assert reference_for(get("tabletop_openvla_grpo")) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "choose an action"),
        ("lits", "Did you mean 'list'"),
        ("list nowhere", "there is no folder nowhere"),
        ("show .", "is not the folder of a training run"),
        ("compare . . .", "takes one run or two"),
        ("compare . . --recipe x", "--recipe goes with one run"),
        ("export . --out x/", "is not the folder of a training run"),
    ],
)
def test_bad_input_is_one_line(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs", *words.split()]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_reference_runs_or_an_evaluation_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_run(tmp_path / "a", replace(RECIPE, suite="tabletop_goal"))
    assert main(["runs", "compare", str(other)]) == 2
    assert "name one: --recipe" in capsys.readouterr().err
    assert main(["runs", "compare", str(other), "--recipe", "tabletop_openvla_ppo"]) == 0
    early = write_run(tmp_path / "b", RECIPE, updates=5)
    assert main(["runs", "compare", str(early)]) == 2
    said = capsys.readouterr()
    assert "not judged: the reference runs have evaluations after 10, 20, 30 updates" in said.out
    assert "made 5 of 30 updates and was last evaluated after 0: " in said.out  # what it has is shown all the same
    assert "is not evaluated where the reference runs of" in said.err
