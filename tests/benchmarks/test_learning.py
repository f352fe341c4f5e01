"""The page of finished runs, from folders written by hand; every expected number is worked out here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.benchmarks.learning import group_runs, main, make_page, read_run
from embodied_rl.benchmarks.learning_pace import episodes_to, pace_table, way_table
from embodied_rl.benchmarks.learning_stretch import stretch
from embodied_rl.config.policies import Pi0Config
from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.evaluation.evaluate import report
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.telemetry.metrics import MetricsLog
from embodied_rl.types import EpisodeResult, EpisodeSpec

TASKS = ("toy/reach_it", "toy/touch_it")
PNG = b"\x89PNG\r\n\x1a\n"


def results(*successes: int) -> list[EpisodeResult]:
    """Ten episodes a task, the first `successes[i]` of task i successful."""
    return [
        EpisodeResult(
            spec=EpisodeSpec(10 * index + n, task, 50 + n, n, 10 * index + n),
            success=n < won,
            terminated=n < won,
            truncated=n >= won,
            reward=float(n < won),
            num_decisions=4,
            num_steps=30,
            final_value=0.0,
        )
        for index, (task, won) in enumerate(zip(TASKS, successes, strict=True))
        for n in range(10)
    ]


def write_run(
    folder: Path,
    seed: int,
    before: tuple[int, int],
    after: tuple[int, int] | None,
    *,
    seconds: tuple[float | None, ...] = (300.0,),
    cpu: float | None = None,
    **changes: Any,
) -> Path:
    """A run of two updates: 60 and 120 s, 600 and 1200 decisions, 64 and 96 episodes. cpu: CPU seconds a session."""
    config = replace(TrainConfig(), suite="toy", iterations=2, seed=seed, output=str(folder), **changes)
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(config))
    stamp: dict[str, Any] = {
        "command": f"embodied-rl train toy --seed {seed}",
        "machine": "a quiet one, 2 cores",
        "weights": "w",
    }
    stamp |= {} if cpu is None else {"cpu_seconds": cpu}
    sessions = [stamp | ({} if time is None else {"seconds": time}) for time in seconds]
    (folder / "run.json").write_text(json.dumps(sessions))
    (folder / "evaluations").mkdir()
    with MetricsLog(folder / "metrics.jsonl") as log:
        for step, won in ((0, before), (2, after)):
            if step:
                for index, (time, decisions, episodes) in enumerate(((60, 600, 64), (120, 1200, 96)), 1):
                    log.write(
                        index,
                        {
                            "time/iteration": time,
                            "rollout/decisions": decisions,
                            "rollout/episodes": episodes,
                            "rollout/success": 0.5,
                        },
                    )
            if won is not None:
                found = report(results(*won), "greedy")
                log.write(step, found.metrics())
                (folder / "evaluations" / f"iter-{step:06d}.json").write_text(json.dumps(found.to_json()))
    return folder


def cells(page: str, first: str, nth: int = 0) -> list[str]:
    """The cells of the nth table row that begins with `first`."""
    rows = [line for line in page.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in rows[nth].strip("|").split("|")]


def test_the_page_of_three_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Wilson, n = 20: 8 of 20 is 0.400 in [0.2188, 0.6134]; 19 of 20 is 0.950 in [0.7639, 0.9911];
    # 14 of 20 is 0.700 in [0.4810, 0.8545]: not above 0.6134; 4 of 20 is 0.200 in [0.0807, 0.4160].
    runs = [
        write_run(tmp_path / "b", 1, (4, 4), (6, 8), cpu=90.0),
        write_run(tmp_path / "a", 0, (5, 3), (9, 10), seconds=(200.0, 220.0), cpu=75.0),
        write_run(tmp_path / "c", 2, (2, 2), (8, 6), algorithm=PPOConfig(), seconds=(100.0, None)),
    ]
    out, figure = tmp_path / "docs" / "results" / "page.md", tmp_path / "docs" / "images" / "curve.png"
    assert main([*map(str, runs), "--out", str(out), "--figure", str(figure)]) == 0
    assert str(out) in capsys.readouterr().out
    page = out.read_text()
    assert figure.read_bytes().startswith(PNG)
    assert "](../images/curve.png)" in page
    assert page.index("## toy, openvla, GRPO") < page.index("## toy, openvla, PPO")

    common = ["20", "2", "160", "3.0"]  # held-out episodes, updates, training episodes, (60 + 120) s
    assert cells(page, "0") == [
        "0",
        "40.0 %",
        "21.9 to 61.3 %",
        "95.0 %",
        "76.4 to 99.1 %",
        "+55.0",
        *common,
        "7.0",
        "2.5",
        "10",
    ]  # two sessions of 75 s of CPU time each
    assert cells(page, "1") == [
        "1",
        "40.0 %",
        "21.9 to 61.3 %",
        "70.0 %",
        "48.1 to 85.5 %",
        "+30.0",
        *common,
        "5.0",
        "1.5",
        "10",
    ]
    # 1800 decisions in 180 s; a session of seed 2 was killed, so nobody knows how long it took in all
    assert cells(page, "2")[-3:] == ["not recorded", "not recorded", "10"]
    assert cells(page, "mean") == [
        "mean",
        "40.0 %",
        "",
        "82.5 %",
        "",
        "+42.5",
        "",
        "",
        "160",
        "3.0",
        "6.0",
        "2.0",
        "10",
    ]

    assert "- seed 0: the lower bound after (76.4 %) is above the upper bound before (61.3 %)." in page
    assert "- seed 1: the lower bound after (48.1 %) is **not** above the upper bound before (61.3 %)." in page
    assert "- seed 2: the lower bound after (48.1 %) is above the upper bound before (41.6 %)." in page
    assert "The bound holds in 1 of 2 seeds." in page
    assert "The bound holds in 1 of 1 seeds." in page

    # by task: before is the mean of 5/10 and 4/10; after by seed, then its mean
    assert cells(page, "reach it") == ["reach it", "10", "45.0 %", "90.0 %", "60.0 %", "75.0 %"]
    assert cells(page, "touch it") == ["touch it", "10", "35.0 %", "100.0 %", "80.0 %", "90.0 %"]
    assert cells(page, "touch it", 1) == ["touch it", "10", "20.0 %", "60.0 %", "60.0 %"]
    assert page.count("embodied-rl train toy --seed 0") == 2  # each of its sessions
    assert "- machine: a quiet one, 2 cores" in page


def test_equal_bounds_are_no_improvement(tmp_path: Path) -> None:
    """'Above' is strict: a run that changed nothing has not improved."""
    assert not read_run(write_run(tmp_path / "a", 0, (10, 10), (10, 10))).improved


def test_a_resumed_run_counts_each_iteration_once(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", 0, (5, 5), (9, 9), seconds=(100.0, 150.0)))
    assert (run.training_seconds, run.all_seconds, run.total("rollout/episodes")) == (180, 250, 160)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learner": LearnerConfig(lr=1e-3)}, "learner.lr"),
        ({"algorithm": GRPOConfig(clip_high=0.3)}, "algorithm.clip_high"),
        ({"tasks": ("reach_it",)}, "tasks"),
    ],
)
def test_runs_that_differ_in_more_than_their_seed_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], named: str
) -> None:
    runs = [write_run(tmp_path / "a", 0, (5, 5), (9, 9)), write_run(tmp_path / "b", 1, (5, 5), (9, 9), **changes)]
    assert refused(tmp_path, runs, capsys).endswith(f"differ in more than their seed: {named}.")


def test_other_threads_films_and_evaluations_on_the_way_are_no_difference(tmp_path: Path) -> None:
    often = EvalConfig(every=7)
    assert often.every != TrainConfig().evaluation.every
    runs = [
        write_run(tmp_path / "a", 0, (5, 5), (9, 9)),
        write_run(tmp_path / "b", 1, (5, 5), (9, 9), videos=0, num_threads=1, evaluation=often),
    ]
    ((key, members),) = group_runs([read_run(folder) for folder in runs]).items()
    assert key == ("toy", "openvla", "GRPO")
    assert [run.config.seed for run in members] == [0, 1]


def test_pi0_has_a_table_for_each_way_to_explore_and_says_how_its_start_was_made(tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    made = {"command": "embodied-rl sft demos", "dataset": {"collected": {"command": "embodied-rl collect toy"}}}
    (start / "provenance.json").write_text(json.dumps(made))
    sde, noise = (Pi0Config(exploration=method, checkpoint=str(start)) for method in ("flow_sde", "flow_noise"))
    runs = [
        write_run(tmp_path / "a", 0, (5, 5), (9, 9), policy=sde, algorithm=PPOConfig()),
        write_run(tmp_path / "b", 0, (5, 5), (9, 9), policy=noise, algorithm=PPOConfig()),
    ]
    groups = group_runs([read_run(folder) for folder in runs])
    assert list(groups) == [("toy", "pi0 with flow_noise", "PPO"), ("toy", "pi0 with flow_sde", "PPO")]
    page = make_page(groups, "curve.png")
    assert page.count("- start: `embodied-rl collect toy`\n- start: `embodied-rl sft demos`\n") == 2


def test_the_same_seed_twice_an_unfinished_run_and_no_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, twin = (write_run(tmp_path / name, 0, (5, 5), (9, 9)) for name in "ab")
    assert "same seed 0" in refused(tmp_path, [good, twin], capsys)
    stopped = write_run(tmp_path / "c", 1, (5, 5), None)
    assert f"embodied-rl train --resume {stopped}" in refused(tmp_path, [good, stopped], capsys)
    assert "is not the folder of a training run" in refused(tmp_path, [tmp_path / "none"], capsys)
    assert not (tmp_path / "page.md").exists()


def refused(tmp_path: Path, runs: list[Path], capsys: pytest.CaptureFixture[str]) -> str:
    words = ["--out", str(tmp_path / "page.md"), "--figure", str(tmp_path / "curve.png")]
    assert main([*map(str, runs), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def paced(*successes: float) -> list[dict[str, float]]:
    """Iterations of 10 episodes, with an evaluation's line before and after, which has no training success."""
    rows = [{"step": i + 1, "rollout/success": value, "rollout/episodes": 10.0} for i, value in enumerate(successes)]
    return [{"step": 0, "eval/success": 1.0}, *rows, {"step": len(rows), "eval/success": 1.0}]


def test_episodes_until_a_success() -> None:
    rows = paced(1.0, 0.0, 0.0, 0.0, 0.0, 0.6, 0.6, 0.6, 0.6, 0.6)
    assert episodes_to(rows, 0.12) == 50, "the first full window: a lucky start alone reaches nothing"
    assert episodes_to(rows, 0.36) == 80
    assert episodes_to(rows, 0.6) == 100
    assert episodes_to(rows, 0.61) is None
    assert episodes_to(paced(1.0, 1.0, 1.0, 1.0), 0.5) is None, "too short for a window"


def test_the_table_of_episodes() -> None:
    fast, slow = paced(*[0.65] * 5), paced(*[0.2] * 5, *[0.55] * 5)
    page = pace_table({"a": [fast, fast], "b": [slow, fast]})
    assert page[-3] == "| a | 50, 50 (mean 50) | 50, 50 (mean 50) |"
    assert page[-2] == "| b | 100, 50 (mean 75) | never, 50 |"
    assert pace_table({"a": [paced(0.1)]}) == []


def test_the_table_of_held_out_success_on_the_way() -> None:
    def run(*points: tuple[int, float]) -> list[dict[str, float]]:
        return [
            {"rollout/episodes": 10.0, "rollout/success": 0.0}
            | (
                {"eval/success": dict(points)[at], "eval/success_ci_low": 0.0, "eval/success_ci_high": 1.0}
                if at in dict(points)
                else {}
            )
            for at in (10, 20, 30)
        ]

    page = way_table({"a": [run((10, 0.25), (30, 0.5)), run((30, 0.75))], "b": [run((20, 0.5))]})
    assert page[4].startswith("|  | 10 | 20 | 30 |")
    assert page[-3] == "| a | 25.0 % (1) |  | 62.5 % (2) |"
    assert page[-2] == "| b |  | 50.0 % (1) |  |"


def rising(factor: float, seed: int, noise: float = 0.02) -> list[dict[str, float]]:
    """A run whose success rises as 1 - exp(-episodes / (1000 factor)), with noise."""
    draw = np.random.default_rng(seed)
    return [
        {"rollout/episodes": 128.0, "rollout/success": 1 - np.exp(-128 * at / 1000 / factor) + noise * draw.normal()}
        for at in range(1, 31)
    ]


def test_how_many_times_as_many_episodes() -> None:
    reference = [rising(1.0, seed) for seed in range(3)]
    for factor in (0.8, 1.0, 1.35):
        found, low, high = stretch(reference, [rising(factor, seed) for seed in (3, 4, 5)])
        assert found == pytest.approx(factor, abs=0.06)
        assert low - 0.03 <= factor <= high + 0.03
        assert high - low < 0.3
    _, low, high = stretch(reference, [rising(1.0, 3), rising(2.0, 4)])
    assert high - low > 0.5, "seeds that differ make it unsure"


def test_a_schedule_has_a_table_of_its_own(tmp_path: Path) -> None:
    serial = write_run(tmp_path / "a", 0, (1, 1), (9, 9))
    stream = write_run(
        tmp_path / "b",
        0,
        (1, 1),
        (9, 9),
        scheduler=PipelinedConfig(),
        learner=LearnerConfig(minibatch_size=None, minibatch_groups=2),
    )
    groups = group_runs([read_run(serial), read_run(stream)])
    assert [key[2] for key in groups] == ["GRPO", "GRPO under stream, minibatches of 2 groups"]
    page = make_page(groups, "curve.png")
    assert "| toy, openvla, GRPO under stream, minibatches of 2 groups | toy, openvla, GRPO |" in page
    alone = {key: runs for key, runs in groups.items() if "under" in key[2]}
    assert "How many times as many" not in make_page(alone, "curve.png")
