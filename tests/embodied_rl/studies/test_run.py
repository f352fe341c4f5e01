"""The runner of studies: looks at the data until all is decided, and runs nothing that a comparison does not need."""

from __future__ import annotations

from collections.abc import Mapping

from embodied_rl.evaluation.adastop import ComparisonPlan, ComparisonState, compare
from embodied_rl.studies.run import run_until_decided

PLAN = ComparisonPlan(looks=(10, 20), draws=2000)
SUCCESS = {"good": 1.0, "bad": 0.0, "one": 0.5, "other": 0.5}


class Study:
    """Samples that are made when they are asked for. ran: by name, how many at each call."""

    def __init__(self, names: str) -> None:
        self.samples: dict[str, list[float]] = {name: [] for name in names.split()}
        self.ran: list[dict[str, int]] = []

    def compare(self) -> ComparisonState:
        return compare({name: rows for name, rows in self.samples.items() if name != "apart"}, PLAN)

    def run(self, needed: Mapping[str, int]) -> bool:
        missing = {name: count - len(self.samples[name]) for name, count in needed.items()}
        missing = {name: count for name, count in missing.items() if count > 0}
        for name, count in missing.items():
            self.samples[name] += [SUCCESS.get(name, 0.0)] * count
        self.ran.append(missing)
        return bool(missing)


def test_what_is_decided_at_the_first_look_runs_nothing_more() -> None:
    study = Study("good bad")
    state = run_until_decided(study.compare, study.run, {})
    assert state.verdict("good", "bad") == "better"
    assert study.ran == [{"good": 10, "bad": 10}, {}]


def test_what_is_open_runs_to_the_last_look_without_what_is_decided() -> None:
    study = Study("bad one other")
    state = run_until_decided(study.compare, study.run, {})
    assert state.verdict("one", "other") == "not decided"
    assert study.ran == [{"bad": 10, "one": 10, "other": 10}, {"one": 10, "other": 10}, {}]


def test_some_are_run_whole_whatever_the_comparisons_say() -> None:
    study = Study("good bad apart")
    run_until_decided(study.compare, study.run, {"apart": 15, "bad": 20})
    assert {name: len(rows) for name, rows in study.samples.items()} == {"good": 10, "bad": 20, "apart": 15}


def test_what_was_run_before_is_not_run_again() -> None:
    study = Study("good bad")
    study.samples["good"] = [1.0] * 10
    run_until_decided(study.compare, study.run, {})
    assert study.ran == [{"bad": 10}, {}]
