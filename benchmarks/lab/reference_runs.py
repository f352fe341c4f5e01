"""Makes assets/reference_runs.yaml from the recorded runs of docs/results.

`python -m embodied_rl.benchmarks.lab.reference_runs`; with `--check` it prints how each recorded run lies in the
prediction interval of the others of its recipe, and the extrapolation from half of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
import yaml

from embodied_rl.benchmarks.lab.curves import ALL_TASKS, Point, evaluations, read_csv
from embodied_rl.evaluation.extrapolation import Extrapolation, Rate, extrapolate
from embodied_rl.evaluation.intervals import prediction_interval
from embodied_rl.jobs.reference_runs import REFERENCE_RUNS

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
_NOTE = "# Made by `python -m embodied_rl.benchmarks.lab.reference_runs` from docs/results: change nothing here.\n"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Where the runs of a recipe are: a file of docs/results and the labels in it; episodes: of an evaluation."""

    recipe: str
    file: str
    labels: tuple[str, ...]
    episodes: int

    def runs(self) -> list[list[Point]]:
        """All points of each run over all tasks, evaluations and updates, in their order."""
        points = [point for point in read_csv(RESULTS / self.file) if point.task == ALL_TASKS]
        keys = dict.fromkeys((point.label, point.seed) for point in points if point.label in self.labels)
        return [[point for point in points if (point.label, point.seed) == key] for key in keys]


RECORDED = (
    Recorded(
        "tabletop_openvla_ppo",
        "tabletop.csv",
        ("openvla ppo serial", "openvla ppo on_policy", "openvla ppo async"),
        250,
    ),
    Recorded("libero_openvla_ppo", "libero.csv", ("openvla ppo serial",), 500),
    Recorded("tabletop_openvla_oft_grpo", "policies.csv", ("openvla_oft grpo serial",), 100),
    Recorded("tabletop_pi0_ppo", "policies.csv", ("pi0 ppo serial, flow_sde",), 100),
)


def measured(run: Sequence[Point]) -> list[Point]:
    """The evaluations of a run after at least one update."""
    (seeds,) = evaluations(run).values()
    (points,) = seeds.values()
    return [point for point in points if point.update > 0]


def halfway(run: Sequence[Point], episodes: int) -> Extrapolation:
    """What the first half of a run says about its end."""
    last = run[-1].update
    each = run[-1].episodes / last
    early = [point for point in run if point.update <= last / 2]
    rollouts = [
        Rate((point.update - 1) / last, point.rollout_success, each)
        for point in early
        if point.rollout_success is not None
    ]
    evaluated = [
        Rate(point.update / last, point.success, episodes)
        for point in early
        if point.success is not None and point.update > 0
    ]
    return extrapolate(rollouts, evaluated)


def reference_yaml() -> str:
    """The whole file."""
    return _NOTE + yaml.safe_dump({item.recipe: _reference(item) for item in RECORDED}, sort_keys=False)


def _reference(item: Recorded) -> dict[str, object]:
    runs = [measured(run) for run in item.runs()]
    curve = []
    for points in zip(*runs, strict=True):
        interval = prediction_interval([point.success for point in points if point.success is not None], item.episodes)
        figures = {"mean": interval.mean, "low": interval.low, "high": interval.high}
        curve.append({"update": points[0].update} | {name: round(value, 4) for name, value in figures.items()})
    minutes = [point.cpu_minutes for run in item.runs() for point in run if point.cpu_minutes is not None]
    return {
        "source": f"docs/results/{item.file}",
        "runs": len(runs),
        "episodes": item.episodes,
        "cpu_minutes": [min(minutes), max(minutes)] if minutes else None,
        "curve": curve,
    }


def check() -> None:
    """Print, for each recorded run, the prediction interval of the others and the extrapolation from its first half."""
    print(f"{'recipe':<28}{'run':>4}{'end':>8}{'interval of others':>22}{'':>9}{'from half the run':>28}{'off by':>8}")
    for item in RECORDED:
        runs = item.runs()
        ends = [float(measured(run)[-1].success or 0.0) for run in runs]
        for number, run in enumerate(runs):
            others = [end for index, end in enumerate(ends) if index != number]
            interval = prediction_interval(others, item.episodes)
            low, high = f"{interval.low:.1%}", f"{interval.high:.1%}"
            said = halfway(run, item.episodes)
            place = "inside" if ends[number] in interval else "OUTSIDE"
            print(
                f"{item.recipe:<28}{number:>4}{ends[number]:>8.1%}{f'{low} to {high}':>22}{place:>9}"
                f"{f'{said.expected:.1%} ({said.low:.1%} to {said.high:.1%})':>28}{said.expected - ends[number]:>+8.1%}"
            )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Make the reference runs of the recipes from the recorded runs."""

    check: bool = False
    """Only print how the recorded runs lie in the prediction intervals, and the extrapolation from half of each."""


if __name__ == "__main__":
    if tyro.cli(Options).check:
        check()
    else:
        REFERENCE_RUNS.write_text(reference_yaml(), encoding="utf-8")
    sys.exit(0)
