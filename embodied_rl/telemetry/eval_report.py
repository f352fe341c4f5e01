"""The page of an evaluation: what ran, success once and at the end by task, and videos of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.evaluation.benchmark import BenchmarkReport, Tally
from embodied_rl.telemetry.pages import write_page
from embodied_rl.telemetry.tables import figure, interval_words, what_counts
from embodied_rl.types import EpisodeSpec


@dataclass(frozen=True, slots=True)
class FailureVideo:
    """A recording of an episode that failed. succeeded: this second run of it did not fail, so the policy or the
    simulator does not repeat itself here."""

    task: str
    init_state: int
    video: bytes
    succeeded: bool


@dataclass(frozen=True, slots=True)
class EvalPage:
    """What the page shows.

    Args:
        title: the policy and what it is evaluated on.
        facts: what a reader wants to know first, by name.
        run_info: all of what ran.
        report: what was found.
        further: further tables by heading (protocol, fingerprint, ...).
        videos: of failures.
        premises: by task and evaluated initial state, what fails of what the task says; empty where nobody judged.
    """

    title: str
    facts: Mapping[str, Any]
    run_info: Mapping[str, Any]
    report: BenchmarkReport
    further: Mapping[str, Mapping[str, Any]]
    videos: Sequence[FailureVideo] = ()
    premises: Mapping[str, Mapping[int, Sequence[str]]] = field(default_factory=dict)


def rows_of(report: BenchmarkReport) -> list[tuple[str, Tally]]:
    """All tasks together, the episodes from states that were not trained on (if that is a part of them), each task."""
    unseen = [("states not trained on", report.unseen)] if report.unseen is not None else []
    return [("all tasks", report.overall), *unseen, *report.tasks.items()]


def write_eval_page(path: Path, content: EvalPage) -> None:
    """Write the page; one that is there is replaced whole."""
    once = content.report.overall.once
    measured = f"Success in {once.successes} of" if once.has_success else "Mean return of"
    measured += f" {once.episodes}"
    write_page(
        path,
        "evaluation.html",
        title=content.title,
        page=content,
        large=figure(once),
        small=f"{measured} episodes, 95 % interval {interval_words(once)}; {once.mean_steps:.0f} steps an episode.",
        counts=what_counts(once),
        rows=rows_of(content.report),
        failing=_failing(content),
    )


def _failing(content: EvalPage) -> list[tuple[EpisodeSpec, Sequence[str], str]]:
    """The episodes from states in which a premise fails, what fails there, and how each ended."""
    found = []
    for outcome in content.report.outcomes:
        spec = outcome.result.spec
        if texts := content.premises.get(spec.task, {}).get(spec.init_state):
            found.append((spec, texts, "success" if outcome.result.success else "failure"))
    return found
