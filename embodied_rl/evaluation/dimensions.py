"""Success by what was perturbed, against the same policy on the same tasks unperturbed (LIBERO-plus' report)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from embodied_rl.evaluation.evaluate import Score, score
from embodied_rl.evaluation.intervals import paired_interval
from embodied_rl.evaluation.results_log import EpisodeOutcome, Finished

ALL = "all"
"""Every perturbed episode together."""


@dataclass(frozen=True, slots=True)
class DimensionScore:
    """Of one dimension.

    Args:
        perturbed: of its episodes.
        unperturbed: of their partners, each as often as it is one.
        difference: of the two success rates, pair by pair.
        low, high: its 95 % interval (Agresti and Min 2005), over perturbations of these tasks.
        pairs: of which both episodes were measured.
    """

    perturbed: Score
    unperturbed: Score
    difference: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True, slots=True)
class DimensionReport:
    """What an evaluation on perturbed tasks found.

    Args:
        dimensions: by name, and `ALL`; only those with a measured pair.
        outcomes: of the unperturbed episodes, which no other score counts.
        left_out: names of tasks of each dimension that did not run, and why not.
    """

    dimensions: dict[str, DimensionScore]
    outcomes: list[EpisodeOutcome]
    left_out: dict[str, dict[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        data = asdict(self)
        data["unperturbed_episodes"] = data.pop("outcomes")
        return data


def split(finished: Finished, dimension: Callable[[int], str | None]) -> tuple[Finished, Finished]:
    """The perturbed episodes and the unperturbed ones; dimension: of an episode, by id."""

    def part(*, perturbed: bool) -> Finished:
        kept = [
            {key: value for key, value in episodes.items() if (dimension(key) is not None) == perturbed}
            for episodes in (finished.outcomes, finished.not_measured)
        ]
        return Finished(*kept)  # type: ignore[arg-type]

    return part(perturbed=True), part(perturbed=False)


def by_dimension(
    finished: Finished, dimension: Callable[[int], str | None], left_out: Mapping[str, Mapping[str, int]]
) -> DimensionReport:
    """Pair each perturbed episode with the unperturbed one of its task and initial state.

    Args:
        finished: both kinds of episodes.
        dimension: what is perturbed in an episode, by id; None: nothing.
        left_out: as of `DimensionReport`.
    """
    perturbed, plain = split(finished, dimension)
    partners = {_key(outcome): outcome for outcome in plain.outcomes.values()}
    pairs: dict[str, list[tuple[EpisodeOutcome, EpisodeOutcome]]] = {ALL: []}
    for number, outcome in sorted(perturbed.outcomes.items()):
        partner = partners.get(_key(outcome))
        if partner is not None:
            for name in (ALL, str(dimension(number))):
                pairs.setdefault(name, []).append((outcome, partner))
    dimensions = {name: _score(rows) for name, rows in pairs.items() if rows}
    outcomes = [outcome for _, outcome in sorted(plain.outcomes.items())]
    return DimensionReport(dimensions, outcomes, {name: dict(counts) for name, counts in left_out.items()})


def _key(outcome: EpisodeOutcome) -> tuple[str, int]:
    return outcome.result.spec.task, outcome.result.spec.init_state


def _score(pairs: list[tuple[EpisodeOutcome, EpisodeOutcome]]) -> DimensionScore:
    one, other = ([pair[side].result for pair in pairs] for side in (0, 1))
    apart = paired_interval([float(result.success) for result in one], [float(result.success) for result in other])
    return DimensionScore(score(one), score(other), *apart, len(pairs))
