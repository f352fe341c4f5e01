"""The sequential test: by hand, by its properties, and its error rate with and without the correction."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.benchmarks.lab.sequential import Case, Figures, Simulation, episodes_used, failures, outcomes, simulate
from embodied_rl.errors import UserError
from embodied_rl.evaluation.adastop import ComparisonPlan, compare
from embodied_rl.evaluation.intervals import paired_interval

FEW = Simulation(simulations=300, draws=500)


def test_one_look_at_one_pair_is_the_exact_sign_flip_test() -> None:
    """Nine differences of +1: 2 of 512 sign vectors sum to 9 in size, p = 0.0039; with a -1 among ten, 0.0215."""
    plan = ComparisonPlan(looks=(9,), level=0.05, draws=20_000)
    assert compare({"a": [1] * 9, "b": [0] * 9}, plan).verdict("a", "b") == "better"
    tight = ComparisonPlan(looks=(9,), level=0.003, draws=20_000)
    assert compare({"a": [1] * 9, "b": [0] * 9}, tight).verdict("a", "b") == "not decided"
    first, second = [1] * 9 + [0, 0], [0] * 9 + [0, 1]
    for level, verdict in ((0.03, "better"), (0.015, "not decided")):
        state = compare({"a": first, "b": second}, ComparisonPlan(looks=(11,), level=level, draws=20_000))
        assert state.verdict("a", "b") == verdict
        assert state.verdict("b", "a") == {"better": "worse"}.get(verdict, verdict)


def test_what_is_clear_early_needs_no_more_episodes_and_the_rest_goes_on() -> None:
    plan = ComparisonPlan(looks=(20, 40), draws=1000)
    good, equal, bad = [1.0] * 20, ([1.0, 0.0] * 20)[:20], [0.0] * 20
    state = compare({"good": good, "bad": bad}, plan)
    assert (state.comparisons[0].look, state.needed) == (1, {})
    other = ([0.0, 1.0] * 20)[:20]
    state = compare({"bad": bad, "x": equal, "y": other}, plan)
    assert state.verdict("x", "y") == "not decided"
    assert state.needed == {"x": 40, "y": 40}
    state = compare({"bad": bad, "x": equal * 2, "y": other * 2}, plan)
    assert state.needed == {}
    assert state.ranks(["bad", "x", "y"]) == {"bad": 3, "x": 1, "y": 1}


def test_a_state_that_one_side_did_not_measure_is_in_no_pair_of_it() -> None:
    plan = ComparisonPlan(looks=(12,), draws=2000)
    first, second, third = [1.0] * 9 + [0.0] * 3, [0.0] * 9 + [1.0] * 3, [0.0] * 12
    second[9:], third[0] = [math.nan] * 3, math.nan
    state = compare({"a": first, "b": second, "c": third}, plan)
    found = {(row.first, row.second): row for row in state.comparisons}
    assert {pair: row.pairs for pair, row in found.items()} == {("a", "b"): 9, ("a", "c"): 11, ("b", "c"): 8}
    for (one, two), rows in {("a", "b"): (first[:9], second[:9]), ("a", "c"): (first[1:], third[1:])}.items():
        row = found[one, two]
        assert (row.difference, row.low, row.high) == paired_interval(*rows)
    assert found["a", "b"].difference == 1.0
    assert state.verdict("a", "b") == "better"


def test_equal_outcomes_are_never_told_apart() -> None:
    same = [1.0, 0.0] * 20
    state = compare({"a": same, "b": same, "c": same}, ComparisonPlan(looks=(10, 20, 40), draws=500))
    assert {row.verdict for row in state.comparisons} == {"not decided"}
    assert state.ranks("abc") == {"a": 1, "b": 1, "c": 1}


@given(st.lists(st.tuples(*[st.integers(0, 1)] * 3), min_size=30, max_size=30), st.integers(0, 3))
@settings(max_examples=25)
def test_names_and_order_of_names_change_nothing_and_more_data_takes_no_verdict_back(
    rows: list[tuple[int, ...]], seed: int
) -> None:
    data = {name: [float(row[i]) for row in rows] for i, name in enumerate("abc")}
    plan = ComparisonPlan(looks=(10, 20, 30), draws=300, seed=seed)
    whole = compare(data, plan)
    turned = compare(dict(reversed(data.items())), plan)
    for x, y in itertools.permutations("abc", 2):
        assert whole.verdict(x, y) == turned.verdict(x, y)
    early = compare({name: values[:10] for name, values in data.items()}, plan)
    for row in early.comparisons:
        if row.verdict != "not decided":
            assert whole.verdict(row.first, row.second) == row.verdict


def test_the_error_rate_is_kept_where_looking_again_and_again_breaks_it() -> None:
    for case in (Case("three", (0.6,) * 3, 100), Case("two and one", (0.6, 0.6, 0.8), 100)):
        assert (simulate(case, FEW).error or 0.0) <= 0.05
    case, looks, wrong = Case("two", (0.6, 0.6), 100), range(10, 101, 5), 0
    for seed in range(FEW.simulations):
        data = outcomes(case, 0.5, seed)
        signs = ComparisonPlan(looks=(100,), draws=500, seed=seed).signs()
        wrong += any(
            compare({k: v[:n] for k, v in data.items()}, ComparisonPlan(looks=(n,), draws=500), signs[:, :n])
            .comparisons[0]
            .look
            for n in looks
        )
    assert wrong / FEW.simulations > 0.1


def test_a_clear_difference_saves_episodes_and_what_is_short_is_said() -> None:
    case = Case("20 points", (0.6, 0.8), 250)
    figures = simulate(case, Simulation(simulations=100, draws=500))
    assert figures.used <= 0.7
    assert (figures.power or 0.0) > 0.9
    assert failures(figures, case, 0.05, 100) == []
    assert failures(Figures("x", 0.09, None, None, 1.0), case, 0.05, 2000)
    short = simulate(Case("1 point", (0.60, 0.61), 100), Simulation(simulations=20, draws=500))
    assert failures(short, Case("1 point", (0.60, 0.61), 100), 0.05, 20)


def test_episodes_are_counted_until_the_last_comparison_of_each() -> None:
    plan = ComparisonPlan(looks=(20, 40), draws=1000)
    alike = {"x": [1.0, 0.0] * 20, "y": [0.0, 1.0] * 20, "bad": [0.0] * 40}
    assert episodes_used(compare(alike, plan), plan, list(alike)) == 40 + 40 + 20


def test_the_interval_is_agresti_and_mins() -> None:
    """20 pairs, 8 won by the first alone, 2 by the second: (8 - 2) / 22, by hand."""
    first = [1] * 8 + [0] * 2 + [1] * 10
    second = [0] * 8 + [1] * 2 + [1] * 10
    difference, low, high = paired_interval(first, second)
    assert difference == pytest.approx(0.3)
    centre, spread = 6 / 22, 1.959963985 * np.sqrt((11 / 22 - (6 / 22) ** 2) / 22)
    assert (low, high) == pytest.approx((centre - spread, centre + spread), abs=1e-8)
    assert paired_interval([], []) == (0.0, -1.0, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"looks": ()}, "rising"),
        ({"looks": (5, 5)}, "rising"),
        ({"looks": (5,), "level": 1.0}, "between 0 and 1"),
        ({"looks": (1, 2, 3), "level": 0.01, "draws": 100}, "take at least 300"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ComparisonPlan(**options)
