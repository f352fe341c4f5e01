"""The page of a run: one HTML file that holds everything and opens offline, rewritten after every evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.evaluation.change import Change
from embodied_rl.evaluation.evaluate import Score
from embodied_rl.telemetry.curve import plots_of
from embodied_rl.telemetry.pages import render
from embodied_rl.telemetry.plots import draw
from embodied_rl.telemetry.tables import change_words, figure, interval_words
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted


@dataclass(frozen=True, slots=True)
class Outcome:
    """Success of one task (or of all together) on held-out states.

    after: of the newest evaluation; None before there is a second one. change: None where the two are not of the same
    initial states.
    """

    label: str
    before: Score
    after: Score | None = None
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class Clip:
    """Two recordings of the same held-out episode, as MP4 bytes; `after` is None while the run has not ended."""

    label: str
    before: bytes
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows.

    Args:
        title: the policy and what it is trained on.
        state: how far the run is, in words.
        when: of which policy `Outcome.after` is, such as 'after 30 updates'.
        facts: what a reader wants to know first, by name.
        run_info: all of what really ran.
        outcomes: all tasks together, then each.
        config: as YAML.
        metrics: lines of the metrics file.
        timeline: SVG of the first iterations, or ''.
        left_out: a sentence about initial states that training leaves out, or ''.
    """

    title: str
    state: str
    when: str
    facts: Mapping[str, Any]
    run_info: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    config: str
    metrics: Sequence[Mapping[str, Any]] = ()
    clips: Sequence[Clip] = field(default_factory=tuple)
    timeline: str = ""
    left_out: str = ""


# The figures that a reader looks for first; the rest is in metrics.jsonl.
_METRIC_COLUMNS = (
    "step",
    "rollout/success",
    "eval/success",
    "rollout/reward",
    "eval/return",
    "rollout/episodes",
    "rollout/filtered_groups",
    "rollout/broken_groups",
    "train/loss",
    "speed/decisions_per_s",
)


def render_report(report: Report) -> str:
    """The page as text: the result and whose it is first, what ran folded below."""
    total = report.outcomes[0]
    scores = [total.before] + ([total.after] if total.after else [])
    return render(
        "run.html",
        title=report.title,
        report=report,
        headline=" \N{RIGHTWARDS ARROW} ".join(map(figure, scores)),
        summary=_summary(total, report.when),
        plots=[draw(plot) for plot in plots_of(report.metrics)],
        columns=_columns(report.metrics),
    )


def write_report(path: Path, report: Report) -> None:
    """Write the page; a page that is there is replaced whole."""
    replace_text(path, render_report(report))


def _summary(total: Outcome, when: str) -> str:
    """What the headline means: the change with its interval, or the first evaluation alone."""
    what = "Success" if total.before.has_success else "Mean return"
    before = f"before training {_measured(total.before)}"
    if total.after is None:
        return f"{what} on held-out initial states, {before}."
    change = f": {change_words(total.change)}" if total.change else ""
    return f"{what} on held-out initial states{change}. It was {before}, and {when} {_measured(total.after)}."


def _measured(score: Score) -> str:
    """'62.0% (48.2% to 74.1%, 50 episodes)'."""
    return f"{figure(score)} ({interval_words(score)}, {counted(score.episodes, 'episode')})"


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of the table of metrics: those that some line has."""
    success = any("eval/success" in row for row in rows)
    spare = ("rollout/reward", "eval/return") if success else ()
    return [name for name in _METRIC_COLUMNS if name not in spare and any(name in row for row in rows)]
