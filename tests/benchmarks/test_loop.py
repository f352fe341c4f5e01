"""`embodied-rl bench loop --quick` with the real engine and policy, and the arithmetic of its table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.benchmarks import loop
from embodied_rl.benchmarks.loop import Iteration, ratios_of, stage_rows
from embodied_rl.cli import main
from embodied_rl.config.train import TrainConfig

ITERATIONS = [
    Iteration(100, 60, 700, 8, 2.0, {"act": 0.5, "update": 1.0, "other": 0.5}, {"act": 1.0, "update": 1.5, "other": 0}),
    Iteration(300, 240, 2100, 24, 3.0, {"act": 1.5, "update": 1.5, "other": 0}, {"act": 2, "update": 1, "other": 0}),
]


def test_ratios_weight_by_time_not_by_iteration() -> None:
    """400 decisions in 5 s are 80/s; the mean of 50/s and 100/s would be 75."""
    ratios = ratios_of(ITERATIONS)
    assert ratios["decisions_per_s"] == pytest.approx(80)
    assert (ratios["decisions_per_s_low"], ratios["decisions_per_s_high"]) == pytest.approx((50, 100))
    assert ratios["ms_per_decision"] == pytest.approx(12.5)
    assert ratios["env_steps_per_s"] == pytest.approx(560)
    assert ratios["trained_share"] == pytest.approx(0.75)
    assert ratios["cores_busy"] == pytest.approx(5.5 / 5)


def test_rows_split_all_of_the_time() -> None:
    rows = {row["stage"]: row for row in stage_rows(ITERATIONS)}
    assert rows["act"] == {"stage": "act", "wall_ms": 5.0, "cpu_ms": 7.5, "share": 0.4}
    assert rows["reset"] == {"stage": "reset", "wall_ms": 0.0, "cpu_ms": 0.0, "share": 0.0}
    assert rows["all"]["wall_ms"] == pytest.approx(12.5)
    assert sum(rows[stage]["share"] for stage in loop.ORDER) == pytest.approx(1)


def test_the_bench_measures_the_preset_of_train_tabletop() -> None:
    from embodied_rl.cli.select import select

    assert loop.bench_config(quick=False) == select(["tabletop", "--policy", "openvla"]).config


def test_quick_run_with_the_real_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quick, and smaller still: two worlds, two episodes."""
    quick = loop.bench_config

    def tiny(flag: bool) -> TrainConfig:
        config = quick(flag)
        return replace(
            config,
            num_threads=1,
            rollout=replace(config.rollout, episodes_per_iteration=2),
            env=replace(config.env, num_envs=2),
        )

    monkeypatch.setattr(loop, "bench_config", tiny)
    file = tmp_path / "loop.json"
    assert main(["bench", "loop", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["bench"] == "loop"
    assert found["quick"] is True
    assert found["setup"]["weights"]

    (iteration,) = found["iterations"]  # the warm-up is not among them
    assert iteration["episodes"] == 2
    assert iteration["rows"] == iteration["decisions"] > 2  # PPO trains on every decision
    assert iteration["env_steps"] > iteration["decisions"]
    for kind in ("wall", "cpu"):
        assert set(iteration[kind]) == set(loop.ORDER)
    assert all(iteration["wall"][stage] > 0 for stage in loop.ORDER)
    assert sum(iteration["wall"].values()) == pytest.approx(iteration["seconds"])

    ratios = found["ratios"]
    assert ratios["decisions_per_s"] == pytest.approx(iteration["decisions"] / iteration["seconds"])
    assert [row["stage"] for row in found["rows"]] == [*loop.ORDER, "all"]
    said = capsys.readouterr().out
    assert f"{ratios['decisions_per_s']:.1f} decisions/s" in said
    assert "simulate" in said
