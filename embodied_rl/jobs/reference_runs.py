"""Reference runs of the recipes: what a user of a recipe should see.

Read from assets/reference_runs.yaml, which `benchmarks/lab/reference_runs.py` makes of recorded runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from embodied_rl import assets, configs
from embodied_rl.config.train import TrainConfig, kind_of
from embodied_rl.evaluation.intervals import PredictionInterval
from embodied_rl.utils.strict_yaml import read_mapping
from embodied_rl.utils.words import counted
from embodied_rl.version import REPOSITORY

REFERENCE_RUNS = Path(assets.__file__).with_name("reference_runs.yaml")


@dataclass(frozen=True, slots=True)
class Point:
    """Success on held-out states after so many updates, of all recorded runs together."""

    update: int
    interval: PredictionInterval


@dataclass(frozen=True, slots=True)
class ReferenceRuns:
    """What recorded runs of a recipe gave.

    Args:
        recipe: its name.
        source: file with the recorded runs, in the repository.
        runs: how many there are.
        episodes: of one evaluation.
        cpu_minutes: of the fastest and the slowest run; None where they were not recorded.
        curve: evaluations after at least one update, in their order; the last is the end.
    """

    recipe: str
    source: str
    runs: int
    episodes: int
    cpu_minutes: tuple[float, float] | None
    curve: tuple[Point, ...]

    @property
    def end(self) -> Point:
        """The last evaluation."""
        return self.curve[-1]


@cache
def reference_runs() -> dict[str, ReferenceRuns]:
    """The reference runs of every recipe that has some, by its name."""
    found = {}
    for recipe, data in read_mapping(REFERENCE_RUNS).items():
        curve = tuple(
            Point(row["update"], PredictionInterval(row["mean"], row["low"], row["high"])) for row in data["curve"]
        )
        minutes = data["cpu_minutes"]
        found[recipe] = ReferenceRuns(
            recipe, data["source"], data["runs"], data["episodes"], tuple(minutes) if minutes else None, curve
        )
    return found


def reference_for(config: TrainConfig) -> ReferenceRuns | None:
    """Those of the recipe that trains the same kind of policy on the same tasks by the same algorithm, or None."""
    for name, reference in reference_runs().items():
        recipe = configs.get(name)
        same = all(kind_of(part, getattr(config, part)) == kind_of(part, getattr(recipe, part)) for part in _KINDS)
        if same and (config.suite, config.tasks) == (recipe.suite, recipe.tasks) and _explores_alike(config, recipe):
            return reference
    return None


def reference_line(reference: ReferenceRuns) -> str:
    """What a user should see."""
    interval, minutes = reference.end.interval, reference.cpu_minutes
    cost = f"; {' to '.join(dict.fromkeys(f'{value:.0f}' for value in minutes))} CPU minutes" if minutes else ""
    runs = f"{counted(reference.runs, 'run')}, {REPOSITORY}/blob/main/{reference.source}"
    return (
        f"{reference.recipe}: {interval.mean:.1%} after {reference.end.update} updates, another run in "
        f"{interval.low:.1%} to {interval.high:.1%} ({runs}){cost}"
    )


_KINDS = ("policy", "algorithm")


def _explores_alike(config: TrainConfig, recipe: TrainConfig) -> bool:
    return getattr(config.policy, "exploration", None) == getattr(recipe.policy, "exploration", None)
