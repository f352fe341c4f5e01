"""Runs with and without an option, from folders written by hand; every expected number is worked out here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.benchmarks.lab import levers
from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.telemetry.metrics import MetricsLog

PAGE = "# Title\n\nWords stay.\n\n<!-- tables -->\nold\n<!-- end of tables -->\n\nThe end.\n"


def write_run(folder: Path, seed: int, success: Sequence[float], steps: float = 6400.0) -> Path:
    """A run of 64 episodes an update, whose updates succeed as said; evaluated before and after."""
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(replace(TrainConfig(), seed=seed)))
    with MetricsLog(folder / "metrics.jsonl") as log:
        log.write(0, {"eval/success": 0.25, "eval/success/a": 0.5, "eval/success/b": 0.0})
        for step, rate in enumerate(success, 1):
            log.write(
                step,
                {
                    "rollout/episodes": 64.0,
                    "rollout/env_steps": steps,
                    "rollout/success": rate,
                    "cpu/update": 2.0 * step,
                },
            )
        log.write(len(success), {"eval/success": 0.75, "eval/success/a": 0.9, "eval/success/b": 0.6})
    return folder


def read(tmp_path: Path, success: Sequence[float]) -> levers.Run:
    return levers.read_run("plain", write_run(tmp_path / "run", 3, success))


def test_an_evaluation_joins_the_update_that_it_follows(tmp_path: Path) -> None:
    run = read(tmp_path, [0.5, 0.5])
    assert [(row.update, row.episodes, row.success, row.worst_task) for row in run] == [
        (0, None, 0.25, 0.0),
        (1, 64.0, None, None),
        (2, 64.0, 0.75, 0.6),
    ]
    assert {row.seed for row in run} == {3}


def test_what_a_run_comes_to(tmp_path: Path) -> None:
    run = read(tmp_path, [0.25] * 5 + [0.75] * 16)
    assert levers.final_success(run) == 0.75
    assert levers.worst_task(run) == 0.6
    assert levers.steps_per_success(run) == pytest.approx(10 * 6400 / (64 * (5 * 0.25 + 5 * 0.75)))
    assert levers.update_seconds(run) == pytest.approx(22.0)
    assert levers.steps_per_success([replace(row, env_steps=None) for row in run]) is None, "not counted"


def test_a_level_is_reached_over_three_updates(tmp_path: Path) -> None:
    run = read(tmp_path, [1.0, 0.0, 0.0, 0.9, 0.6, 0.6, 1.0])
    assert levers.reached(run, 0.7) == 6 * 64
    assert levers.reached(run, 0.74) is None
    assert levers.reached(run, 0.3) == 3 * 64, "not before there are three"


def test_runs_to_csv_to_page_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rising, flat = [0.3, 0.8, 0.8, 0.8], [0.1] * 4
    runs = [write_run(tmp_path / f"run{n}", n % 2, rates) for n, rates in enumerate([rising, flat, rising, rising])]
    table, page, figure = tmp_path / "t.csv", tmp_path / "page.md", tmp_path / "f.png"
    page.write_text(PAGE)
    labels = [f"pi0/plain={runs[0]},{runs[1]}", f"pi0/other critic={runs[2]},{runs[3]}"]
    assert levers.main(["--runs", labels[0], "--runs", labels[1], "--csv", str(table)]) == 0
    assert "| **other critic** | mean | 4 | 75.0 %" in capsys.readouterr().out
    assert levers.main(["--csv", str(table), "--page", str(page), "--figure", str(figure)]) == 0
    text = page.read_text()
    assert text.startswith("# Title\n\nWords stay.\n")
    assert text.endswith("\nThe end.\n")
    assert "### pi0" in text
    assert "| plain | 0 | 4 | 75.0 % | 60.0 % |" in text
    # one of the plain runs never gets there, so there is no mean
    ends = {line.split("|")[1].strip(): line.split("|")[-2].strip() for line in text.splitlines() if "mean" in line}
    assert ends == {"**plain**": "", "**other critic**": "256"}
    assert "explained variance" not in text, "nothing filled that column"
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_same_csv_comes_back(tmp_path: Path) -> None:
    rows = levers.read_run("a", write_run(tmp_path / "run", 1, [0.5, 0.25]))
    levers.write_csv(tmp_path / "t.csv", rows)
    assert levers.read_csv(tmp_path / "t.csv") == {"a": [rows]}


def test_input_that_does_not_fit_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("a,b\n1,2\n")
    for given in (
        ["--runs", "plain", "--csv", str(table)],
        ["--runs", f"a={tmp_path}", "--csv", str(table)],
        ["--csv", str(table)],
    ):
        assert levers.main(given) == 2
        assert capsys.readouterr().err.startswith("error: ")
