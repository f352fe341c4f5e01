"""Finished runs to CSV to page, from folders written by hand; every expected number is worked out here."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from embodied_rl.benchmarks.lab.curves import COLOURS, Point, draw, evaluations, main, make_tables, read_csv, read_run
from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.configs import get
from embodied_rl.telemetry.metrics import MetricsLog
from tests.run_info import ended, run_info

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = "# Title\n\nWords stay.\n\n<!-- tables -->\nold\n<!-- end of tables -->\n\nThe end.\n"


def sessions(*ends: tuple[float, bool]) -> str:
    """run.json of sessions that took so many CPU seconds, and finished the run or not."""
    return json.dumps([asdict(run_info(end=ended(cpu_seconds=cpu, finished=finished))) for cpu, finished in ends])


def write_run(folder: Path, seed: int, before: float, after: float) -> Path:
    """A run of two updates, of 64 and 96 episodes, evaluated before and after, in 90 CPU seconds."""
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(replace(TrainConfig(), iterations=2, seed=seed)))
    (folder / "run.json").write_text(sessions((60.0, False), (30.0, True)))
    with MetricsLog(folder / "metrics.jsonl") as log:
        for step, episodes, rate in ((0, None, before), (1, 64.0, None), (2, 96.0, after)):
            if episodes is not None:
                log.write(step, {"rollout/episodes": episodes, "rollout/success": 0.5})
            if rate is not None:
                interval = {"eval/success_ci_low": rate - 0.1, "eval/success_ci_high": rate + 0.1}
                log.write(step, {"eval/success": rate, "eval/success/toy/reach_it": rate} | interval)
    return folder


def test_runs_to_csv_to_page_and_figure(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run{seed}", seed, 0.25, after) for seed, after in ((0, 0.5), (1, 0.75))]
    table, page, figure = tmp_path / "t.csv", tmp_path / "page.md", tmp_path / "f.png"
    page.write_text(PAGE)
    assert main([*map(str, runs), "--csv", str(table)]) == 0
    points = read_csv(table)
    assert points == [point for run in runs for point in read_run(run)]
    assert [p.episodes for p in points if p.seed == 0 and p.task == "all"] == [0, 64, 160, 160]
    assert main(["--csv", str(table), "--page", str(page), "--figure", str(figure)]) == 0
    text = page.read_text()
    assert text.startswith("# Title\n\nWords stay.")
    assert text.endswith("The end.\n")
    assert "old" not in text
    assert "| 1 | 25.0 % | 15.0 to 35.0 % | 75.0 % | 65.0 to 85.0 % | 2 | 160 | 1.5 |" in text
    assert "| mean | 25.0 % |  | **62.5 %** |" in text
    assert "| reach it | 25.0 % | 62.5 % |" in text
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_tasks_without_success_show_their_mean_return(tmp_path: Path) -> None:
    folder, table, page, figure = (tmp_path / name for name in ("run", "t.csv", "page.md", "f.png"))
    folder.mkdir()
    config = replace(get("gymnasium_mlp_ppo"), tasks=("Pendulum-v1",))
    (folder / "config.yaml").write_text(dump_yaml(config))
    (folder / "run.json").write_text(sessions((60.0, True)))
    with MetricsLog(folder / "metrics.jsonl") as log:
        for step, mean in ((0, -1200.0), (1, -150.0)):
            if step:
                log.write(step, {"rollout/episodes": 16.0, "rollout/reward": -900.0})
            values = {"eval/return": mean, "eval/return_ci_low": mean - 50, "eval/return_ci_high": mean + 50}
            log.write(step, values | {"eval/return/gymnasium/Pendulum-v1": mean})
    page.write_text(PAGE)
    assert main([str(folder), "--csv", str(table)]) == 0
    assert main(["--csv", str(table), "--page", str(page), "--figure", str(figure)]) == 0
    text, label = page.read_text(), "gymnasium Pendulum-v1"
    assert f"| {label} | 0 | -1200.0 | -1250.0 to -1150.0 | -150.0 | -200.0 to -100.0 | 1 | 16 | 1.0 |" in text
    assert f"| **{label}** | mean | -1200.0 |  | **-150.0** |" in text
    assert "By task" not in text
    assert "%" not in text
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["tabletop", "policies", "state", "libero", "libero_object"])
def test_the_pages_in_docs_are_made_from_their_csv(name: str) -> None:
    tables = "\n".join(make_tables(read_csv(RESULTS / f"{name}.csv")))
    assert tables in (RESULTS / f"{name}.md").read_text(), "run the command at the end of the page"


def test_what_does_not_fit_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    page = tmp_path / "page.md"
    page.write_text("no marks")
    good = tmp_path / "good.csv"
    assert main([str(write_run(tmp_path / "run", 0, 0.2, 0.4)), "--csv", str(good)]) == 0
    unfinished = write_run(tmp_path / "unfinished", 1, 0.2, 0.4)
    (unfinished / "run.json").write_text(sessions((60.0, False)))
    number, empty, short, endless, outside, binary = (tmp_path / f"{name}.csv" for name in "abcdef")
    lines = good.read_text().splitlines(keepends=True)
    number.write_text(lines[0] + lines[1].replace(",0,", ",x,", 1))
    short.write_text(lines[0] + "a,0\n")
    endless.write_text(lines[0] + "a,0,0,0,all,nan,,,,,,,,\n")
    outside.write_text(lines[0] + "a,0,0,0,all,0.5,0.6,0.7,,,,,,\n")
    binary.write_bytes(bytes(range(128, 256)))
    damaged = write_run(tmp_path / "damaged", 1, 0.2, 0.4)
    (damaged / "metrics.jsonl").write_text('{"a": 1}\n')
    empty.write_text(lines[0] + next(line for line in lines if ",all,,,," in line))
    bad = (
        ["--csv", str(other)],
        [str(tmp_path), "--csv", str(good)],
        [str(unfinished), "--csv", str(good)],
        ["--csv", str(good), "--page", str(page)],
        ["--csv", str(number)],
        *(["--csv", str(table)] for table in (short, endless, outside, binary)),
        [str(damaged), "--csv", str(good)],
        ["--csv", str(good), "--page", str(binary)],
        ["--csv", str(empty), "--figure", str(tmp_path / "f.png")],
        ["--csv", str(good), "--figure", str(tmp_path / "nowhere" / "f.png")],
    )
    for words in bad:
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_two_runs_of_one_label_and_seed_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / name, 0, 0.25, 0.5)) for name in ("spatial", "object")]
    table = tmp_path / "t.csv"
    assert main([*runs, "--csv", str(table)]) == 2
    error = capsys.readouterr().err
    assert runs[0] in error
    assert runs[1] in error
    assert not table.exists()
    other = replace(TrainConfig(), suite="tabletop_goal", iterations=2, seed=1)
    (tmp_path / "object" / "config.yaml").write_text(dump_yaml(other))
    assert main([*runs, "--csv", str(table)]) == 2
    assert f"are of {TrainConfig().suite} and of tabletop_goal" in capsys.readouterr().err


def test_evaluations_are_in_the_order_of_updates() -> None:
    late, early = (Point("a", 0, update, update, "all", 0.1 * update, None, None, None, None) for update in (5, 1))
    assert evaluations([late, early]) == {"a": {0: [early, late]}}


def test_a_figure_shows_every_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeds = range(len(COLOURS) + 2)
    points = [point for seed in seeds for point in read_run(write_run(tmp_path / f"run{seed}", seed, 0.25, 0.5))]
    shown: list[str] = []
    monkeypatch.setattr(Axes, "errorbar", lambda self, *args, label, **others: shown.append(label))
    draw(points)
    assert shown == [f"seed {seed}" for seed in seeds]
