"""Tasks of which some initial states break, or that ignore their seed: trained, resumed, evaluated and compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.policies.checkpoints.folder import read_weights
from tests.sim.gymnasium.faulty_envs import SOME, walk

SHORT = (
    "--env.num-envs 4 --rollout.episodes-per-iteration 16 --iterations 3 --checkpoint.every 1 --checkpoint.keep 9 "
    "--evaluation.states-per-task 40 --evaluation.every 0 --videos 0 --num-threads 1"
)


def train(folder: Path, fault: str, words: str = "", above: float = SOME, seed: int = 0) -> Path:
    task = f"tests.sim.gymnasium.faulty_envs:{walk(fault, above)}"
    argv = ["train", "gymnasium", "--task", task, *SHORT.split(), *words.split(), "--seed", str(seed)]
    assert main([*argv, "--output", str(folder)]) == 0
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_weights(folder / "checkpoints" / "iter-000003" / "policy" / "model.safetensors")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a task that raises in one of twelve initial states."""
    return train(tmp_path_factory.mktemp("runs") / "whole", "raises")


def same(one: Path, two: Path) -> None:
    for name, tensor in weights(one).items():
        torch.testing.assert_close(weights(two)[name], tensor, rtol=0, atol=1e-4)  # sums of other groups of rows
    for left, right in zip(rows(one), rows(two), strict=True):
        for name in ("rollout/success", "rollout/broken_groups", "rollout/broken_states_total", "eval/success"):
            assert left.get(name) == right.get(name)


def test_the_run_ends_and_says_what_it_left_out(run: Path) -> None:
    found = rows(run)
    assert any(row.get("rollout/broken_groups") for row in found)
    assert {row["rollout/episodes"] for row in found if "rollout/episodes" in row} == {16}
    lost = {row["eval/not_measured"] for row in found if "eval/episodes" in row}
    assert len(lost) == 1
    assert 1 <= min(lost) <= 8
    page = (run / "report.html").read_text()
    assert f"not measured: {int(min(lost))} of 40" in page
    assert "Left out of training" in page
    assert "The simulator breaks from" in page


@pytest.mark.parametrize(
    "words",
    [pytest.param("--env.processes 2", marks=pytest.mark.process), "--scheduler pipelined --scheduler.env-groups 2"],
)
def test_processes_and_threads_give_the_same_run(words: str, run: Path, tmp_path: Path) -> None:
    same(run, train(tmp_path / "other", "raises", words))


def test_a_resumed_run_is_the_same(run: Path, tmp_path: Path) -> None:
    half = train(tmp_path / "half", "raises", "--iterations 1")
    assert main(["train", "--resume", str(half), "--iterations", "3"]) == 0
    assert next(row for row in rows(half) if row["step"] == 3)["train/loss"] == rows(run)[-2]["train/loss"]
    for name, tensor in weights(run).items():
        assert torch.equal(weights(half)[name], tensor), name


def test_an_evaluation_says_what_it_did_not_measure(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "figures.json", str(tmp_path / "evaluation")
    words = ["eval", "gymnasium", "--checkpoint", str(run), "--states-per-task", "40"]
    assert main([*words, "--output", out, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    lost = found["overall"]["once"]["not_measured"]
    assert lost > 0
    assert f"not measured: {lost} of 40" in capsys.readouterr().out
    assert found["overall"]["once"]["episodes"] == 40 - lost == len(found["episodes"])
    assert {spec["init_state"] for spec in found["not_measured"]}.isdisjoint(
        row["result"]["spec"]["init_state"] for row in found["episodes"]
    )


def test_two_runs_are_compared_on_what_both_measured(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, path = tmp_path / "other", Path("evaluations/iter-000003.json")
    shutil.copytree(run, other)
    found = json.loads((run / path).read_text())
    found["not_measured"] = [found["results"].pop()["spec"]]  # one more than in the run, which has all the others
    (other / path).write_text(json.dumps(found))
    capsys.readouterr()
    assert main(["runs", "compare", str(run), str(other)]) == 0
    lost = int(rows(run)[-1]["eval/not_measured"])
    said = capsys.readouterr().out
    assert f"on the same {40 - lost - 1} initial states" in said
    assert f"(not measured: {lost} of 40)" in said


def test_a_task_that_ignores_its_seed_is_stamped_and_not_paired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(tmp_path / "first", "unseeded", "--iterations 1 --evaluation.states-per-task 4", above=-1.0)
    assert "repeats   no: the task does not repeat an episode from its seed" in " ".join(
        capsys.readouterr().out.split("\n")
    )
    info = json.loads((first / "run.json").read_text())[-1]
    assert info["simulator"]["repeatable"] is False
    assert "overlap with training</dt><dd>unknown: episodes do not begin" in (first / "report.html").read_text()
    assert json.loads((first / "evaluations" / "iter-000001.json").read_text())["repeatable"] is False
    second = shutil.copytree(first, tmp_path / "second")
    capsys.readouterr()
    assert main(["runs", "compare", str(first), str(second)]) == 0
    said = capsys.readouterr().out
    assert "no difference state by state, as the task does not repeat an episode from its seed" in said
    assert "on the same" not in said
    path, out = tmp_path / "figures.json", str(tmp_path / "evaluation")
    words = ["eval", "gymnasium", "--checkpoint", str(first), "--states-per-task", "4"]
    assert main([*words, "--output", out, "--json", str(path)]) == 0
    assert json.loads(path.read_text())["simulator"]["repeatable"] is False
    assert "repeats" in capsys.readouterr().out


def test_where_more_than_a_quarter_breaks_the_run_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, folder = walk("raises", 0.2), tmp_path / "run"
    assert main(["train", "gymnasium", "--task", task, *SHORT.split(), "--output", str(folder)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "of training, which is more than a quarter: task 'gymnasium/" in line
