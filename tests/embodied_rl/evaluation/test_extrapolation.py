"""Prediction intervals and extrapolation by hand, on the recorded runs, and on a learner with shuffled rewards."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from embodied_rl.benchmarks.lab.reference_runs import RECORDED, halfway, measured, reference_yaml
from embodied_rl.evaluation.extrapolation import Rate, extrapolate
from embodied_rl.evaluation.intervals import prediction_interval
from embodied_rl.jobs.reference_runs import REFERENCE_RUNS, reference_runs
from tests.embodied_rl.toy_run import run


def test_the_interval_by_hand() -> None:
    """Three runs at 0.8, 0.9 and 1.0: sd 0.1, t(2) 4.3027, so 0.9 -+ 4.3027 * 0.1 * sqrt(4 / 3), cut at 1."""
    interval = prediction_interval([0.8, 0.9, 1.0], 10_000)
    assert interval.low == pytest.approx(0.9 - 4.302653 * 0.1 * math.sqrt(4 / 3), abs=1e-6)
    assert interval.high == 1.0
    equal = prediction_interval([0.5] * 3, 100)  # chance alone: sd 0.05
    assert equal.low == pytest.approx(0.5 - 4.302653 * 0.05 * math.sqrt(4 / 3), abs=1e-6)
    assert 0.5 in equal
    assert 0.2 not in equal
    with pytest.raises(ValueError, match="one run"):
        prediction_interval([0.9], 100)


def test_an_extrapolation_follows_what_was_measured() -> None:
    flat = extrapolate([Rate(t / 20, 0.5, 500) for t in range(10)], [Rate(0.5, 0.5, 500)])
    assert flat.low <= 0.5 <= flat.high
    rising = extrapolate([Rate(t / 20, 0.3 + 0.04 * t, 500) for t in range(10)], [])
    assert rising.expected > 0.7
    more = extrapolate([Rate(t / 20, 0.3 + 0.04 * t, 500) for t in range(18)], [])
    assert more.high - more.low < rising.high - rising.low
    with pytest.raises(ValueError, match="at least one"):
        extrapolate([], [])


def test_half_of_the_recorded_runs_tells_their_end() -> None:
    """Of the six runs of the two recipes with updates of 128 episodes under the serial scheduler, and of all 12."""
    errors, inside = [], []
    for item in RECORDED[:2]:
        for recorded in item.runs():
            end = float(measured(recorded)[-1].success or 0.0)
            said = halfway(recorded, item.episodes)
            errors.append((recorded[0].label, abs(said.expected - end)))
            inside.append(said.low <= end <= said.high)
    serial = [error for label, error in errors if label.endswith("serial")]
    assert len(serial) == 6
    assert sum(error <= 0.04 for error in serial) >= 5
    assert sum(error <= 0.04 for _, error in errors) == 9  # as docs/train.md says
    assert max(error for _, error in errors) < 0.07
    assert len(errors) == 12
    assert all(inside)


def test_the_file_is_that_of_the_recorded_runs_which_lie_inside() -> None:
    assert REFERENCE_RUNS.read_text(encoding="utf-8") == reference_yaml()
    for item in RECORDED:
        for recorded in item.runs():
            assert float(measured(recorded)[-1].success or 0.0) in reference_runs()[item.recipe].end.interval


def test_learners_whose_rewards_are_shuffled_end_outside_the_interval(tmp_path: Path) -> None:
    """Three honest runs of one learner make the interval; a fourth lies inside, three with shuffled rewards do not."""
    ends = []
    for number in range(4):
        outcome, _ = run(tmp_path / f"honest{number}", "ppo", iterations=8, seed=number)
        ends.append(outcome.after.overall.rate)
    interval = prediction_interval(ends[:3], 24)
    assert ends[3] in interval
    for number in range(3):
        outcome, _ = run(tmp_path / f"shuffled{number}", "ppo", iterations=8, seed=number, shuffle_reward=True)
        assert outcome.after.overall.rate not in interval
