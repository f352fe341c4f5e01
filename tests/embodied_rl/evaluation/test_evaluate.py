"""Evaluation: every held-out state once, honest intervals, videos of the very same episodes."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.evaluation.evaluate import EvalReport, evaluate
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.evaluation.record import record_episode
from embodied_rl.policy import ActMode
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.telemetry.tables import cells
from embodied_rl.types import Array, EpisodeResult
from tests.toy import HELDOUT, HORIZON, SIZE, ToyEnv, ToyPolicy

SPECS = evaluation_specs(HELDOUT, 11)


def test_wilson_by_hand() -> None:
    # z = 1.96, 8 of 10: centre (0.8 + 0.19207) / 1.38415, spread 1.96 / 1.38415 * sqrt(0.016 + 0.0096036)
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    low, high = wilson(0, 50)
    assert low == 0
    assert high == pytest.approx(0.0713, abs=1e-4)


@given(st.integers(1, 400), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_wilson_agrees_with_scipy(episodes: int, share: float) -> None:
    successes = round(share * episodes)
    interval = binomtest(successes, episodes).proportion_ci(0.95, method="wilson")
    assert wilson(successes, episodes) == pytest.approx((interval.low, interval.high), abs=1e-12)


@pytest.mark.parametrize(("successes", "episodes"), [(0, 0), (3, 2), (-1, 2)])
def test_impossible_proportions_are_refused(successes: int, episodes: int) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        wilson(successes, episodes)


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_each_state_once_whatever_the_slots(mode: ActMode) -> None:
    reports = []
    for env_ids in (1, 5, 64):
        env = ToyEnv(env_ids)
        reports.append(evaluate(env, ToyPolicy(3), SPECS, mode))
        assert Counter(spec.episode_id for spec in env.started) == Counter(spec.episode_id for spec in SPECS)
    assert reports[0] == reports[1] == reports[2]
    assert [result.spec for result in reports[0].results] == SPECS


def test_the_report_counts_by_task_and_overall() -> None:
    report = evaluate(ToyEnv(8), ToyPolicy(3), SPECS, "sample")
    for task, score in report.tasks.items():
        rows = [result for result in report.results if result.spec.task == task]
        assert score.successes == sum(row.success for row in rows)
        assert score.episodes == len(rows) == 12
        assert (score.low, score.high) == wilson(score.successes, 12)
        assert score.mean_steps == np.mean([row.num_steps for row in rows])
        assert report.metrics()[f"eval/success/{task}"] == score.rate
    assert report.overall.episodes == 24
    assert report.overall.successes == sum(score.successes for score in report.tasks.values())
    assert EvalReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_failures_are_run_again_and_not_counted() -> None:
    seen: list[EpisodeResult] = []
    env = ToyEnv(4, breaks={3: 2, 10: 1})
    report = evaluate(env, ToyPolicy(3), SPECS, "greedy", on_episode=seen.append)
    assert report == evaluate(ToyEnv(4), ToyPolicy(3), SPECS, "greedy")
    assert len(seen) == len(SPECS)
    assert len(env.started) == len(SPECS) + 3


@pytest.mark.parametrize("kind", ["broken", "unseen"])
def test_an_episode_that_always_breaks_is_not_measured_and_the_others_are_scored(kind: str) -> None:
    lost = [spec for spec in SPECS if spec.init_state in (18, 22)]
    states = [(spec.task, spec.init_state) for spec in lost]
    report = evaluate(ToyEnv(4, **{kind: states}), ToyPolicy(3), SPECS, "greedy")  # type: ignore[arg-type]
    whole = evaluate(ToyEnv(4), ToyPolicy(3), SPECS, "greedy")
    assert report.results == [result for result in whole.results if result.spec not in lost]
    assert report.not_measured == lost
    assert report.overall.episodes == len(SPECS) - 4
    assert report.overall.not_measured == 4
    assert {score.not_measured for score in report.tasks.values()} == {2}
    assert report.metrics()["eval/not_measured"] == 4
    assert "eval/not_measured" not in whole.metrics()
    assert EvalReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert cells(report.overall)[1].endswith("\nnot measured: 4 of 24")


def test_where_nothing_can_be_measured_it_says_so_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^nothing could be measured: the simulator broke in every one of 24") as error:
        evaluate(ToyEnv(4, broken={(s.task, s.init_state) for s in SPECS}), ToyPolicy(3), SPECS, "greedy")
    assert "\n" not in str(error.value)
    reach = [(s.task, s.init_state) for s in SPECS if s.task == "toy/reach"]
    report = evaluate(ToyEnv(4, broken=reach), ToyPolicy(3), SPECS, "greedy")
    assert cells(report.tasks["toy/reach"]) == ("not measured: 12 of 12", "")
    assert not any(name.endswith("toy/reach") for name in report.metrics())


def test_no_episodes_is_an_error() -> None:
    with pytest.raises(ValueError, match="no episodes"):
        evaluate(ToyEnv(1), ToyPolicy(), [], "greedy")


@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_a_recorded_episode_is_the_evaluated_one_frame_by_frame(mode: ActMode) -> None:
    report = evaluate(ToyEnv(8), ToyPolicy(3), SPECS, mode)
    for expected in report.results[:8]:
        frames: list[Array] = []
        env = ToyEnv(1)
        outcome = record_episode(
            env, ToyPolicy(3), expected.spec, mode, cameras=["front"], size=SIZE, write=frames.append
        )
        assert outcome == expected
        assert len(frames) == outcome.num_steps + 1 <= HORIZON + 1


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(UserError, match="every"):
        EvalConfig(every=-1)
    with pytest.raises(UserError, match=r"--evaluation\.states-per-task"):
        EvalConfig(states_per_task=0)
