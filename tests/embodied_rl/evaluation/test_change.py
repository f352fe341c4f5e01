"""By how much training changed a policy: on the states that both evaluations measured, and on no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embodied_rl.evaluation.change import paired_change
from embodied_rl.evaluation.evaluate import EvalReport, report
from embodied_rl.evaluation.intervals import paired_interval
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.types import EpisodeResult
from tests.env_info import env_info


def evaluation(
    won: set[int], states: range = range(10), returns: float = 0.0, *, has_success: bool = True
) -> EvalReport:
    """Of two tasks; the states `won` are reached in the first, none in the second."""
    specs = evaluation_specs({"suite/a": states, "suite/b": states}, 0)
    rows = {
        s.episode_id: EpisodeResult(
            s, s.task == "suite/a" and s.init_state in won, True, False, returns + s.init_state, 1, 1
        )
        for s in specs
    }
    return report(specs, rows, "greedy", replace(env_info("toy", 2), has_success=has_success))


def test_states_are_paired() -> None:
    before, after = evaluation({0, 1, 2}), evaluation({2, 3, 4, 5, 6})
    change = paired_change(before, after, "suite/a")
    assert change is not None
    assert change.difference == pytest.approx(0.2)
    one, two = [float(n < 3) for n in range(10)], [float(2 <= n < 7) for n in range(10)]
    assert (change.difference, change.low, change.high) == paired_interval(two, one)
    total = paired_change(before, after)
    assert total is not None
    assert (total.difference, total.states) == (pytest.approx(0.1), 20)


def test_only_states_that_both_measured_count() -> None:
    change = paired_change(evaluation(set()), evaluation({5, 8}, range(5, 15)), "suite/a")
    assert change is not None
    assert (change.difference, change.states) == (pytest.approx(0.4), 5)
    assert paired_change(evaluation(set()), evaluation(set(), range(10, 20))) is None
    assert paired_change(replace(evaluation(set()), repeatable=False), evaluation(set())) is None


def test_returns_that_all_rise_alike_have_no_width() -> None:
    change = paired_change(evaluation(set(), has_success=False), evaluation(set(), returns=3.0, has_success=False))
    assert change is not None
    assert not change.has_success
    assert (change.difference, change.low, change.high) == pytest.approx((3.0, 3.0, 3.0))
