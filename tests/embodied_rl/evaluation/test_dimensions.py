"""Scores by what was perturbed: pairs, their intervals, and what counts where."""

from __future__ import annotations

import dataclasses
import json

import pytest

from embodied_rl.evaluation.dimensions import ALL, by_dimension, split
from embodied_rl.evaluation.intervals import paired_interval
from embodied_rl.evaluation.results_log import EpisodeOutcome, Finished
from embodied_rl.types import EpisodeResult, EpisodeSpec

# dimension (None: unperturbed), task, success
ROWS = [
    *((None, "a", True), (None, "b", False)),
    *(("camera", "a", True), ("camera", "a", False), ("camera", "b", False)),
    *(("noise", "a", False), ("noise", "b", True)),
]


def finished(rows: list[tuple[str | None, str, bool]]) -> Finished:
    found = {}
    for number, (_, task, won) in enumerate(rows):
        spec = EpisodeSpec(number, task, 0, 5, number)
        found[number] = EpisodeOutcome(EpisodeResult(spec, won, won, not won, float(won), 2, 10))
    return Finished(found)


def dimension(number: int) -> str | None:
    return ROWS[number][0]


def test_each_dimension_against_the_same_tasks_unperturbed() -> None:
    report = by_dimension(finished(ROWS), dimension, {"light": {"scenes": 7}})
    assert list(report.dimensions) == [ALL, "camera", "noise"]
    camera = report.dimensions["camera"]
    assert (camera.perturbed.successes, camera.perturbed.episodes) == (1, 3)
    assert (camera.unperturbed.successes, camera.unperturbed.episodes) == (2, 3), "task a's partner counts twice"
    assert (camera.difference, camera.low, camera.high) == paired_interval([1, 0, 0], [1, 1, 0])
    noise = report.dimensions["noise"]
    assert (noise.difference, noise.low, noise.high) == paired_interval([0, 1], [1, 0])
    assert (report.dimensions[ALL].perturbed.successes, report.dimensions[ALL].pairs) == (2, 5)
    data = json.loads(json.dumps(report.to_json()))
    assert [row["result"]["spec"]["episode_id"] for row in data["unperturbed_episodes"]] == [0, 1]
    assert data["left_out"] == {"light": {"scenes": 7}}


def test_order_does_not_matter_and_a_changed_outcome_does() -> None:
    whole = finished(ROWS)
    other = Finished(dict(reversed(whole.outcomes.items())))
    assert by_dimension(other, dimension, {}) == by_dimension(whole, dimension, {})
    broken = [*ROWS[:1], (None, "b", True), *ROWS[2:]]
    assert by_dimension(finished(broken), dimension, {}) != by_dimension(whole, dimension, {})


def test_a_partner_that_broke_the_simulator_makes_no_pair() -> None:
    whole = finished(ROWS)
    lost = whole.outcomes.pop(1)
    found = by_dimension(Finished(whole.outcomes, {1: lost.result.spec}), dimension, {})
    assert {name: row.pairs for name, row in found.dimensions.items()} == {ALL: 3, "camera": 2, "noise": 1}


def test_the_perturbed_and_the_unperturbed_are_told_apart() -> None:
    whole = finished(ROWS)
    broken = dataclasses.replace(whole.outcomes[6].result.spec, episode_id=2)
    perturbed, plain = split(Finished(whole.outcomes, {2: broken}), dimension)
    assert sorted(plain.outcomes) == [0, 1]
    assert sorted(perturbed.outcomes) == [2, 3, 4, 5, 6]
    assert list(perturbed.not_measured) == [2]
    assert plain.not_measured == {}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_no_difference_has_an_interval_around_nothing(share: float) -> None:
    rows: list[tuple[str | None, str, bool]] = [(None, "a", share > 0), *[("camera", "a", share > 0)] * 30]
    report = by_dimension(finished(rows), lambda number: rows[number][0], {})
    row = report.dimensions["camera"]
    assert row.difference == 0
    assert row.low < 0 < row.high
