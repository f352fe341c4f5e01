"""What a leaderboard says: leaderboard.json from the finished episodes alone, its page, and the table of a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.evaluation.adastop import ComparisonPlan, ComparisonState
from embodied_rl.evaluation.benchmark import summarise
from embodied_rl.evaluation.evaluate import Score, nothing_measured, score
from embodied_rl.evaluation.intervals import mean_interval
from embodied_rl.evaluation.overlap import Overlap
from embodied_rl.evaluation.results_log import EpisodeOutcome, Finished
from embodied_rl.jobs.videos import failure_index, failure_path, failures
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.studies.leaderboard_config import Leaderboard, describe_options
from embodied_rl.studies.run import Evaluation, read_finished
from embodied_rl.telemetry.curve import curve_of
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.telemetry.pages import render
from embodied_rl.telemetry.plots import Line, Plot, draw
from embodied_rl.telemetry.tables import lost_words, stand_in_words
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted

ALL = "all tasks"


@dataclass(frozen=True, slots=True)
class Measured:
    """An evaluation with its finished episodes, its fingerprint, and its overlap with training."""

    evaluation: Evaluation
    done: Finished
    marks: Mapping[str, Any]
    seen: Overlap


_TESTS = {
    "episodes": {
        "procedure": "group-sequential sign flips of paired episodes, step-down over all pairs (AdaStop)",
        "speaks_of": "these checkpoints, on these initial states; not of other training seeds",
        "unit": "states",
    },
    "seeds": {
        "procedure": "group-sequential permutations of training seeds, step-down over all pairs (AdaStop)",
        "speaks_of": "the recipes, over training seeds, by their success on these initial states; where one recipe's "
        "seeds spread much more than the other's, equal means are told apart more often than the level says",
        "unit": "training seeds",
    },
}


def figures_of(
    config: Leaderboard,
    measured: Sequence[Measured],
    plan: ComparisonPlan,
    state: ComparisonState,
    not_ranked: Mapping[str, str],
) -> dict[str, Any]:
    """Plain values; the same episodes give the same ones. not_ranked: by row, why it was not compared."""
    ranks = state.ranks([row for row in config.checkpoints if row not in not_ranked])
    rows = [
        _row(name, [m for m in measured if m.evaluation.row == name], ranks.get(name), not_ranked.get(name, ""))
        for name in config.checkpoints
    ]
    rows.sort(key=lambda row: (row["rank"] is None, row["rank"] or 0, -row["success"]["rate"]))
    limits = {"level": plan.level, "looks": list(plan.looks), "draws": plan.draws}
    return {
        "title": config.options.title,
        "measured": describe_options(config.options),
        "test": _TESTS[config.options.compare] | limits,
        "rows": rows,
        "comparisons": [asdict(row) for row in state.comparisons],
        "machine": {part.evaluation.suite: _machine(part.marks) for part in measured},
    }


def _machine(marks: Mapping[str, Any]) -> dict[str, Any]:
    """What all rows of a suite have in common."""
    return {key: value for key, value in marks.items() if key not in ("weights", "efficient")}


def _row(name: str, parts: Sequence[Measured], rank: int | None, not_ranked: str) -> dict[str, Any]:
    suites: dict[str, list[Finished]] = {}
    for part in parts:
        suites.setdefault(part.evaluation.suite, []).append(part.done)
    done = [part.done for part in parts]
    outcomes = [outcome for found in done for _, outcome in sorted(found.outcomes.items())]
    if not outcomes:
        raise UserError(f"row '{name}': {nothing_measured([s for found in done for s in found.not_measured.values()])}")
    specs = [
        *(outcome.result.spec for outcome in outcomes),
        *(s for found in done for s in found.not_measured.values()),
    ]
    shared = sum(part.seen.shared for part in parts)
    unknown = any(part.seen.seen is None for part in parts)
    total = sum(part.seen.episodes for part in parts)
    each = {part.evaluation.number: part.evaluation.command.checkpoint for part in parts}
    return {
        "name": name,
        "rank": rank,
        "not_ranked": not_ranked,
        "overlap": "not recorded" if unknown else f"{shared} of {total}",
        "checkpoints": sorted({part.evaluation.command.checkpoint for part in parts}),
        "weights": sorted({str(part.marks["weights"]) for part in parts}),
        "success": _score(done),
        "seeds": _seeds(parts),
        "training": [curve for checkpoint in each.values() if (curve := _curve(checkpoint)) is not None],
        "motion": _motion(outcomes),
        "suites": {suite: _score(rows) for suite, rows in suites.items()},
        "tasks": {task: _score(done, task) for task in dict.fromkeys(spec.task for spec in specs)},
        "cells": [
            {"folder": folder, "again": f"embodied-rl eval --resume {folder}"}
            for folder in (part.evaluation.folder.as_posix() for part in parts)
        ],
    }


def _motion(outcomes: Sequence[EpisodeOutcome]) -> dict[str, float] | None:
    """How smoothly the arm was commanded; None where an episode's actions are no translations of a hand."""
    if not all(outcome.motion for outcome in outcomes):
        return None
    return {key: round(fmean(o.motion[key] for o in outcomes), 6) for key in ("path_length", "jerk")}


def _seeds(parts: Sequence[Measured]) -> dict[str, Any] | None:
    """Success of each training seed, and their mean with Student's interval; None of a single one."""
    found: dict[int, list[float]] = {}
    for part in parts:
        successes = found.setdefault(part.evaluation.number, [])
        successes += [float(outcome.result.success) for outcome in part.done.outcomes.values()]
    rates = [fmean(values) for values in found.values()]
    if len(rates) < 2:
        return None
    mean, low, high = mean_interval(rates)
    return {"rates": rates, "mean": mean, "low": low, "high": high}


def _curve(checkpoint: str) -> dict[str, Any] | None:
    """The learning curve of the run that wrote a checkpoint; None where it has no metrics of one."""
    folder = Path(checkpoint)
    runs = [place for place in (folder, *folder.parents[:_RUN_ABOVE]) if (place / METRICS).is_file()]
    if is_shipped(checkpoint) or not runs:
        return None
    curve = curve_of(read_metrics(runs[0] / METRICS))
    points = zip(curve.held_out_episodes, curve.held_out, strict=True)
    return {
        "by_return": curve.by_return,
        "held_out": [[episodes, *values] for episodes, values in points],
        "rollout": [list(pair) for pair in zip(curve.rollout_episodes, curve.rollout, strict=True)],
    }


METRICS, _RUN_ABOVE = "metrics.jsonl", 3
"""A run's file; and how far above a checkpoint its run is at most: RUN/checkpoints/iter-N/policy."""


def _score(parts: Sequence[Finished], task: str | None = None) -> dict[str, Any]:
    """Of the episodes in some parts, all or those of a task."""
    results = [outcome.result for part in parts for _, outcome in sorted(part.outcomes.items())]
    lost = [spec for part in parts for spec in part.not_measured.values()]
    found: Score = score(
        [result for result in results if task in (None, result.spec.task)],
        not_measured=sum(task in (None, spec.task) for spec in lost),
    )
    return {
        "rate": found.rate,
        "low": found.low,
        "high": found.high,
        "successes": found.successes,
        "episodes": found.episodes,
        "mean_steps": found.mean_steps,
        **({"not_measured": found.not_measured} if found.not_measured else {}),
    }


@dataclass(frozen=True, slots=True)
class Video:
    """A failed episode. source: its file, from the page's folder; succeeded: the run that was recorded did not fail."""

    row: str
    task: str
    init_state: int
    source: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Extras:
    """What the page shows and leaderboard.json doesn't hold.

    Args:
        speed: by row, `decisions_per_s`, its `seconds` in all, and how many evaluations shared the machine (`jobs`).
        machine: where that was.
        videos: files beside the page.
    """

    speed: Mapping[str, Mapping[str, float]]
    machine: str
    videos: Sequence[Video]


def videos_of(evaluations: Sequence[Evaluation], output: Path, count: int) -> list[Video]:
    """The videos that are there, row by row: of the first `count` failures of each evaluation below `output`."""
    videos = []
    for evaluation in evaluations:
        folder = output / evaluation.folder
        done = read_finished(folder)
        wanted = failures(summarise(done))[:count] if done.outcomes else []
        index = failure_index(folder)
        for spec in wanted:
            path = failure_path(folder, spec)
            if path.is_file():
                source = path.relative_to(output).as_posix()
                videos.append(Video(evaluation.row, spec.task, spec.init_state, source, index[path.name]))
    return videos


def write_page(path: Path, figures: Mapping[str, Any], extras: Extras) -> None:
    """Write the page of `figures`, as leaderboard.json has them; one that is there is replaced whole."""
    replace_text(path, render_page(figures, extras))


def render_page(figures: Mapping[str, Any], extras: Extras) -> str:
    """The page as text."""
    rows = figures["rows"]
    large, small = headline(figures)
    lines = _curves(rows)
    return render(
        "leaderboard.html",
        title=figures["title"],
        figures=figures,
        extras=extras,
        large=large,
        small=small,
        first=_facts(figures),
        scopes=[ALL, *dict.fromkeys(name for row in rows for part in ("suites", "tasks") for name in row[part])],
        scores=[json.dumps({ALL: row["success"], **row["suites"], **row["tasks"]}) for row in rows],
        moves=all(row["motion"] for row in rows),
        curves=draw(Plot("Success on held-out states", lines, rates=True, large=True)) if lines else "",
    )


def headline(figures: Mapping[str, Any]) -> tuple[str, str]:
    """Who is best, and what that means; where the test has not decided between the best, it names no winner."""
    ranked = [row for row in figures["rows"] if row["rank"] is not None]
    level = f"at level {figures['test']['level']:g} for all comparisons together."
    if not ranked:
        return "No row is ranked", "Why stands with each row."
    best, *others = [row for row in ranked if row["rank"] == 1] or ranked[:1]
    rivals = others or [row for row in ranked if row is not best and _open(figures["comparisons"], best, row)]
    if not rivals:
        crowned = f"Better than every other row, {level}" if len(ranked) > 1 else "The only row that is ranked."
        return f"{best['name']}: {best['success']['rate']:.1%}", f"{_measured(best)}. {crowned}"
    words = "; ".join(f"{row['name']} {row['success']['rate']:.1%}, {_measured(row)}" for row in (best, *rivals))
    return "Not decided", f"Which of {counted(1 + len(rivals), 'row')} is best is open {level[:-1]}: {words}."


def _open(comparisons: Sequence[Mapping[str, Any]], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether nothing is decided between two rows."""
    names = {one["name"], other["name"]}
    return any(row["verdict"] == "not decided" and {row["first"], row["second"]} == names for row in comparisons)


def _measured(row: Mapping[str, Any]) -> str:
    score = row["success"]
    return (
        f"{score['successes']} of {score['episodes']} episodes, 95 % interval {score['low']:.1%} to "
        f"{score['high']:.1%}{lost_words(score)}"
    )


def _facts(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, and how."""
    measured = figures["measured"]
    return {
        "rows": len(figures["rows"]),
        "suites": ", ".join(measured["suites"]),
        "held-out states a task": measured.get("states_per_task") or "all",
        "evaluation seeds": ", ".join(map(str, measured["seeds"])),
        "protocol": figures["protocol"]["name"],
        "what the verdicts speak of": figures["test"]["speaks_of"],
    }


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """The learning curves of the rows whose runs have some."""
    lines = []
    for row in rows:
        for number, curve in enumerate(row["training"]):
            if curve["held_out"] and not curve["by_return"]:
                label = row["name"] + (f", seed {number}" if len(row["training"]) > 1 else "")
                lines.append(Line(label, curve["held_out"]))
    return lines


def table_lines(figures: Mapping[str, Any], speed: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The rows for a terminal."""
    width = max(3, *(len(row["name"]) for row in figures["rows"])) + 2
    lines = [f"{'rank':<6}{'row':<{width}}{'success':<9}{'95 % interval':<17}{'episodes':<10}{'steps':<7}decisions/s"]
    for row in figures["rows"]:
        score = row["success"]
        interval = f"{score['low']:.1%} to {score['high']:.1%}"
        rank = "-" if row["rank"] is None else str(row["rank"])
        counts = f"{score['episodes']:<10}{score['mean_steps']:<7.0f}"
        rate = f"{speed[row['name']]['decisions_per_s']:.0f}" if row["name"] in speed else ""
        lines.append(f"{rank:<6}{row['name']:<{width}}{score['rate']:<9.1%}{interval:<17}{counts}{rate}")
        if lost := lost_words(score):
            lines.append(f"        {lost.removeprefix(', ')}")
        if row["not_ranked"]:
            lines.append(f"        {row['not_ranked']}")
    unit = figures["test"]["unit"]
    lines += [
        f"  {item['first']} against {item['second']}: {item['verdict']} ({item['difference']:+.1%}, "
        f"{item['low']:+.1%} to {item['high']:+.1%}, {item['pairs']} {unit})"
        for item in figures["comparisons"]
    ]
    machines = figures["machine"].items()
    lines += [f"  {suite}: {stand_in_words(n)}" for suite, ran in machines if (n := ran.get("stand_in_files"))]
    return lines
