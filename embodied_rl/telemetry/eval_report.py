"""The page of an evaluation: what ran, success once and at the end by task, and videos of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from embodied_rl.evaluation.benchmark import BenchmarkReport, Tally
from embodied_rl.telemetry.report import data_uri, folded, headline, page, pairs, rate_cell, replace_text, section
from embodied_rl.telemetry.tables import interval_words
from embodied_rl.utils.words import counted


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
    """run_info: what ran, in words; facts: further tables by heading (protocol, fingerprint, ...).

    premises: by task and evaluated initial state, what fails of what the task says; empty where nobody judged.
    """

    title: str
    run_info: Mapping[str, Any]
    report: BenchmarkReport
    facts: Mapping[str, Mapping[str, Any]]
    videos: Sequence[FailureVideo] = ()
    premises: Mapping[str, Mapping[int, Sequence[str]]] = field(default_factory=dict)


def rows_of(report: BenchmarkReport) -> list[tuple[str, Tally]]:
    """All tasks together, the episodes from states that were not trained on (if that is a part of them), each task."""
    unseen = [("states not trained on", report.unseen)] if report.unseen is not None else []
    return [("all tasks", report.overall), *unseen, *report.tasks.items()]


def write_eval_page(path: Path, content: EvalPage) -> None:
    """Write the page; one that is there is replaced whole."""
    videos = "".join(map(_video, content.videos))
    once = content.report.overall.once
    parts = [
        f"<h1>{escape(content.title)}</h1>",
        headline(
            f"{once.rate:.1%}", f"{once.successes} of {once.episodes} episodes, 95 % interval {interval_words(once)}."
        ),
        section("Each task", _table(content.report, content.premises)),
        section("Initial states that are not what the task says", _premises(content)) if _failing(content) else "",
        section("Failures", videos) if videos else "",
        folded("What ran", pairs(content.run_info)),
        *(folded(heading, pairs(values)) for heading, values in content.facts.items() if values),
    ]
    replace_text(path, page(content.title, parts))


def _table(report: BenchmarkReport, premises: Mapping[str, Mapping[int, Sequence[str]]]) -> str:
    judged = "<th>premise fails in</th>" if premises else ""
    head = f"<tr><th>task</th><th>success once</th><th>success at end</th><th>steps</th>{judged}</tr>"
    rows = []
    for index, (label, tally) in enumerate(rows_of(report)):
        values = f"{rate_cell(tally.once)}{rate_cell(tally.at_end)}<td>{tally.once.mean_steps:.0f}</td>"
        if premises:
            values += f"<td>{_count(premises[label]) if label in premises else ''}</td>"
        total = " class='total'" if index == 0 else ""
        rows.append(f"<tr{total}><td>{escape(label)}</td>{values}</tr>")
    return f"<div class='wide'><table>{head}{''.join(rows)}</table></div>"


def _count(failed: Mapping[int, Sequence[str]]) -> str:
    return counted(len(failed), "state") if failed else "none"


def _failing(content: EvalPage) -> bool:
    return any(content.premises.values())


def _premises(content: EvalPage) -> str:
    """A row for each episode from a state in which a premise fails."""
    head = "<tr><th>task</th><th>initial state</th><th>what is the case there</th><th>episode</th></tr>"
    rows = []
    for outcome in content.report.outcomes:
        spec = outcome.result.spec
        if texts := content.premises.get(spec.task, {}).get(spec.init_state):
            result = "success" if outcome.result.success else "failure"
            what = escape("; ".join(texts))
            rows.append(
                f"<tr><td>{escape(spec.task)}</td><td>{spec.init_state}</td><td>{what}</td><td>{result}</td></tr>"
            )
    return f"<div class='wide'><table>{head}{''.join(rows)}</table></div>"


def _video(film: FailureVideo) -> str:
    note = " (this second run of it succeeded: it does not repeat itself on this machine)" if film.succeeded else ""
    return (
        f"<figure><video controls loop muted playsinline src='{data_uri('video/mp4', film.video)}'></video>"
        f"<figcaption>{escape(film.task)}, initial state {film.init_state}{note}</figcaption></figure>"
    )
