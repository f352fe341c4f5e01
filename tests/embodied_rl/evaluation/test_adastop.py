"""The test over training seeds: by hand, by its properties, and its error rate with and without the correction."""

from __future__ import annotations

import itertools
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.benchmarks.lab.sequential import SEED_CASES, Figures, Simulation, failures, seed_scores, simulate_seeds
from embodied_rl.errors import UserError
from embodied_rl.evaluation.adastop import ComparisonPlan, compare, compare_seeds, places, seed_looks
from embodied_rl.evaluation.intervals import mean_interval, seeds_interval
from embodied_rl.studies.leaderboard_report import _TESTS

FEW = Simulation(simulations=200, draws=400)


def test_one_look_is_the_exact_permutation_test() -> None:
    """Five seeds above five others: 2 of 252 ways differ so much, p = 0.0079."""
    good, bad = [0.9, 0.8, 0.85, 0.95, 0.7], [0.6, 0.5, 0.4, 0.65, 0.55]
    for level, verdict in ((0.02, "better"), (0.003, "not decided")):
        state = compare_seeds({"a": good, "b": bad}, ComparisonPlan(looks=(5,), level=level, draws=20_000))
        assert state.verdict("a", "b") == verdict
        assert state.verdict("b", "a") == {"better": "worse"}.get(verdict, verdict)


def test_seeds_change_places_within_their_look_only_and_the_first_draw_is_the_observed_one() -> None:
    drawn = places(ComparisonPlan(looks=(3, 5), draws=400))
    assert drawn.shape == (400, 2, 5)
    assert (drawn[0] == [[1] * 5, [-1] * 5]).all()
    assert (drawn[:, :, :3].sum(axis=(1, 2)) == 0).all()
    assert (drawn[:, :, 3:].sum(axis=(1, 2)) == 0).all()
    assert len(np.unique(drawn[:, :, :3].reshape(400, -1), axis=0)) == 20


def test_what_is_clear_early_needs_no_further_seeds_and_the_rest_goes_on() -> None:
    plan = ComparisonPlan(looks=(5, 10), draws=2000)
    same = [0.5, 0.6, 0.7, 0.55, 0.65]
    state = compare_seeds({"bad": [0.0, 0.02, 0.04, 0.02, 0.0], "x": same, "y": same[::-1]}, plan)
    assert state.verdict("x", "bad") == "better"
    assert state.needed == {"x": 10, "y": 10}


@given(st.lists(st.tuples(*[st.integers(0, 20)] * 3), min_size=8, max_size=8), st.integers(0, 3))
@settings(max_examples=25)
def test_order_of_names_and_scale_change_nothing_and_more_seeds_take_no_verdict_back(
    rows: list[tuple[int, ...]], seed: int
) -> None:
    data = {name: [row[i] / 40 for row in rows] for i, name in enumerate("abc")}
    plan = ComparisonPlan(looks=(4, 8), draws=300, level=0.2, seed=seed)
    whole = compare_seeds(data, plan)
    shifted = compare_seeds({name: [value / 2 + 0.25 for value in data[name]] for name in data}, plan)
    assert [row.verdict for row in shifted.comparisons] == [row.verdict for row in whole.comparisons]
    early = compare_seeds({name: values[:4] for name, values in data.items()}, plan)
    for row in early.comparisons:
        if row.verdict != "not decided":
            assert whole.verdict(row.first, row.second) == row.verdict


def test_the_error_rate_is_kept_where_pooled_episodes_and_repeated_looks_break_it() -> None:
    """Pairs of pooled episodes say that two checkpoints differ, which two equal recipes' mostly do."""
    case = SEED_CASES[1]
    assert (simulate_seeds(case, FEW).error or 0.0) <= 0.05 + 0.025
    paired = often = 0
    for seed in range(FEW.simulations):
        scores = seed_scores(case, seed)
        first, second = (values[0] for values in scores.values())
        shared = NormalDist().inv_cdf
        draw = np.random.default_rng(seed).standard_normal(250)
        outcomes = {"a": (draw < shared(first)).astype(float), "b": (-draw < shared(second)).astype(float)}
        paired += compare(outcomes, ComparisonPlan(looks=(250,), draws=200)).comparisons[0].look is not None
        often += any(
            compare_seeds({k: v[:n] for k, v in scores.items()}, ComparisonPlan(looks=(n,), draws=200))
            .comparisons[0]
            .look
            for n in range(4, 11)
        )
    assert paired / FEW.simulations > 0.2
    assert often / FEW.simulations > 0.08


def test_a_design_that_can_decide_nothing_is_refused_and_five_seeds_make_a_look() -> None:
    assert [seed_looks(count, None, 0.05) for count in (4, 5, 9, 10)] == [(4,), (5,), (9,), (5, 10)]
    assert seed_looks(10, 3, 0.05) == (4, 7, 10)
    for seeds, looks in ((3, None), (5, 5), (2, 1)):
        with pytest.raises(UserError, match="take more seeds or fewer looks"):
            seed_looks(seeds, looks, 0.05)


def test_the_intervals_are_welchs_and_students() -> None:
    """By hand: means 0.8 and 0.5, variances 0.01 and 0.04 of 4 each; 4.41 degrees of freedom, t = 2.677."""
    first, second = [0.7, 0.7, 0.9, 0.9], [0.3, 0.3, 0.7, 0.7]
    variances = [np.var(values, ddof=1) / 4 for values in (first, second)]
    difference, low, high = seeds_interval(first, second)
    assert difference == pytest.approx(0.3)
    assert (high - low) / 2 == pytest.approx(2.677 * np.sqrt(sum(variances)), rel=1e-3)
    assert seeds_interval([0.5], [0.25]) == (0.25, -1.0, 1.0)
    assert seeds_interval([0.5, 0.5], [0.25, 0.25]) == (0.25, 0.25, 0.25)
    mean, low, high = mean_interval(first)
    reach = 3.182 * np.std(first, ddof=1) / 2
    assert (mean, mean - low, high - mean) == pytest.approx((0.8, reach, reach), rel=1e-3)
    assert mean_interval([0.4]) == (0.4, 0.0, 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("first", "second", "interval"),
    [
        ([0.7, 0.7, 0.9, 0.9], [0.3, 0.3, 0.7, 0.7], (0.3, -0.04562162281012855, 0.6456216228101286)),
        (
            [0.62, 0.58, 0.7, 0.66, 0.64],
            [0.6, 0.44, 0.5],
            (0.1266666666666667, -0.04332636309816923, 0.29665969643150264),
        ),
        ([0.5, 0.5], [0.2, 0.3], (0.25, -0.38531023680873455, 0.8853102368087346)),
        ([1.0, 1.0, 1.0], [0.02, 0.98], (0.5, -1.0, 1.0)),
        ([0.5, 0.5], [0.25, 0.25], (0.25, 0.25, 0.25)),
    ],
)
def test_welchs_intervals_stay_what_they_were(
    first: list[float], second: list[float], interval: tuple[float, float, float]
) -> None:
    """Figures of the formula written out; seeds that are all alike are no reason to warn."""
    assert seeds_interval(first, second) == pytest.approx(interval, abs=1e-12)


def test_within_a_look_permutations_are_ordered_as_by_the_studentised_statistic() -> None:
    """Welch's t of every way to deal out ten seeds is a rising function of the test's own statistic."""
    values = np.random.default_rng(3).normal(0, [[0.02], [0.2]], (2, 5)).ravel()
    own, welch = [], []
    for first in itertools.combinations(range(10), 5):
        one, two = values[list(first)], np.delete(values, first)
        own.append(abs(one.sum() - two.sum()) / np.sqrt(((values - values.mean()) ** 2).sum()))
        welch.append(abs(one.mean() - two.mean()) / np.sqrt((one.var(ddof=1) + two.var(ddof=1)) / 5))
    assert (np.diff(np.array(welch)[np.argsort(own)]) > -1e-9).all()
    assert "told apart more often than the level" in _TESTS["seeds"]["speaks_of"]


def test_a_level_is_promised_of_recipes_that_are_alike_in_every_way() -> None:
    """One unstable recipe of the same mean is told apart too often, which the bench shows and does not call a fault."""
    figures = Figures("x", 0.12, None, None, 1.0)
    assert [bool(failures(figures, case, 0.05, 2000)) for case in SEED_CASES[1:4]] == [True, False, True]


def test_names_are_compared_each_with_each() -> None:
    state = compare_seeds({name: [0.5] * 5 for name in "abc"}, ComparisonPlan(looks=(5,), draws=300))
    assert [(row.first, row.second) for row in state.comparisons] == list(itertools.combinations("abc", 2))
    assert {row.verdict for row in state.comparisons} == {"not decided"}
