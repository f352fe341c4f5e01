"""What a run is extrapolated from: training episodes that are like those evaluated, and evaluations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.config.train import TrainConfig
from embodied_rl.evaluation.extrapolation import Rate, extrapolate
from embodied_rl.jobs.run_records import RunRecord
from embodied_rl.rollout.config import RolloutConfig
from tests.run_info import run_info

PLAIN = TrainConfig(iterations=20)


def record(config: TrainConfig, *, evaluated: bool = True) -> RunRecord:
    """Half of a run: training episodes at 40 % in each update, unperturbed ones at 70 %; 80 % in evaluations."""
    found = {"rollout/success": 0.4, "rollout/success_unperturbed": 0.7, "rollout/episodes": 128.0}
    rows: list[dict[str, Any]] = [{"step": step} | found for step in range(1, 11)]
    rows += [{"step": 10, "eval/success": 0.8, "eval/episodes": 250.0}] * evaluated
    return RunRecord(Path("run"), config, [run_info()], rows)


def test_an_adaptive_samplers_episodes_say_nothing_of_the_tasks() -> None:
    adaptive = replace(PLAIN, rollout=RolloutConfig(sampler="adaptive"))
    assert record(adaptive).extrapolate() == extrapolate([], [Rate(0.5, 0.8, 250.0)]) != record(PLAIN).extrapolate()
    assert record(adaptive, evaluated=False).extrapolate() is None


@pytest.mark.parametrize("share", [None, 0.5])
def test_perturbed_episodes_say_nothing_of_those_evaluated(share: float | None) -> None:
    config = replace(PLAIN, perturb=("light",), perturb_share=share)
    count = 128.0 * (0.25 if share is None else 0.5)
    rates = [Rate(step / 20, 0.7, count) for step in range(10)]
    assert record(config, evaluated=False).extrapolate() == extrapolate(rates, [])
