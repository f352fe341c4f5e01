"""The page of an evaluation: what ran, success once and at the end by task, and videos of failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from embodied_rl.evaluation.benchmark import BenchmarkReport, Tally
from embodied_rl.evaluation.evaluate import Score
from embodied_rl.telemetry.report import data_uri, page, pairs, replace_text, section


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
    """stamp: what ran, in words; facts: further tables by heading (protocol, fingerprint, ...); films: of failures."""

    title: str
    run_info: Mapping[str, Any]
    report: BenchmarkReport
    facts: Mapping[str, Mapping[str, Any]]
    videos: Sequence[FailureVideo] = ()


def rows_of(report: BenchmarkReport) -> list[tuple[str, Tally]]:
    """All tasks together, the episodes from states that were not trained on (if that is a part of them), each task."""
    unseen = [("states not trained on", report.unseen)] if report.unseen is not None else []
    return [("all tasks", report.overall), *unseen, *report.tasks.items()]


def cells(score: Score | None) -> tuple[str, str]:
    """Rate with counts, and interval."""
    if score is None:
        return "not measured", ""
    return f"{score.rate:.1%} ({score.successes}/{score.episodes})", f"{score.low:.1%} to {score.high:.1%}"


def write_eval_page(path: Path, content: EvalPage) -> None:
    """Write the page; one that is there is replaced whole."""
    films = "".join(map(_video, content.videos))
    parts = [
        f"<h1>{escape(content.title)}</h1>",
        section("Success", _table(content.report)),
        section("What ran", pairs(content.run_info)),
        *(section(heading, pairs(values)) for heading, values in content.facts.items() if values),
        section("Failures", films) if films else "",
    ]
    replace_text(path, page(content.title, parts))


def _table(report: BenchmarkReport) -> str:
    interval = "<th>95 % interval</th>"
    head = f"<tr><th>task</th><th>success once</th>{interval}<th>success at end</th>{interval}<th>steps</th></tr>"
    rows = []
    for index, (label, tally) in enumerate(rows_of(report)):
        values = (*cells(tally.once), *cells(tally.at_end), f"{tally.once.mean_steps:.0f}")
        total = " class='total'" if index == 0 else ""
        rows.append(f"<tr{total}><td>{escape(label)}</td>{''.join(f'<td>{escape(v)}</td>' for v in values)}</tr>")
    return f"<div class='wide'><table>{head}{''.join(rows)}</table></div>"


def _video(film: FailureVideo) -> str:
    note = " (this second run of it succeeded: it does not repeat itself on this machine)" if film.succeeded else ""
    return (
        f"<figure><video controls loop muted playsinline src='{data_uri('video/mp4', film.video)}'></video>"
        f"<figcaption>{escape(film.task)}, initial state {film.init_state}{note}</figcaption></figure>"
    )
