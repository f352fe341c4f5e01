"""What leaderboard.json says, from the finished episodes alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.evaluation.adastop import mean_interval
from embodied_rl.evaluation.evaluate import Score, nothing_measured, score
from embodied_rl.evaluation.overlap import Overlap
from embodied_rl.evaluation.paired import ComparisonPlan, ComparisonState
from embodied_rl.evaluation.results_log import Finished
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.studies.leaderboard_config import Cell, Leaderboard, describe_options
from embodied_rl.telemetry.curve import curve_of
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.types import EpisodeSpec


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell with its finished episodes, its fingerprint, and its overlap with training."""

    cell: Cell
    done: Finished
    marks: Mapping[str, Any]
    seen: Overlap


def paired_outcomes(
    blocks: Sequence[tuple[str, str, int]], parts: Sequence[tuple[str, Sequence[EpisodeSpec], Finished]]
) -> list[float]:
    """Mean success in each of the first blocks (suite, task, initial state) that every part of its suite has run.

    It is NaN where an episode of the block was not measured. parts: suite, episodes and finished episodes of each cell
    of a row.
    """
    found: dict[tuple[str, str, int], list[float]] = {}
    wanted: dict[str, int] = {}
    for suite, specs, done in parts:
        wanted[suite] = wanted.get(suite, 0) + 1
        for spec in specs:
            if spec.episode_id in done:
                outcome = done.outcomes.get(spec.episode_id)
                success = math.nan if outcome is None else float(outcome.result.success)
                found.setdefault((suite, spec.task, spec.init_state), []).append(success)
    values: list[float] = []
    for block in blocks:
        runs = found.get(block, [])
        if len(runs) < wanted[block[0]]:
            break
        values.append(fmean(runs))
    return values


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
    board: Leaderboard,
    measured: Sequence[Measured],
    plan: ComparisonPlan,
    state: ComparisonState,
    not_ranked: Mapping[str, str],
) -> dict[str, Any]:
    """Plain values; the same episodes give the same ones. not_ranked: by row, why it was not compared."""
    ranks = state.ranks([row for row in board.checkpoints if row not in not_ranked])
    rows = [
        _row(name, [m for m in measured if m.cell.row == name], ranks.get(name), not_ranked.get(name, ""))
        for name in board.checkpoints
    ]
    rows.sort(key=lambda row: (row["rank"] is None, row["rank"] or 0, -row["success"]["rate"]))
    limits = {"level": plan.level, "looks": list(plan.looks), "draws": plan.draws}
    return {
        "title": board.options.title,
        "measured": describe_options(board.options),
        "test": _TESTS[board.options.compare] | limits,
        "rows": rows,
        "comparisons": [asdict(row) for row in state.comparisons],
        "machine": {part.cell.suite: _machine(part.marks) for part in measured},
    }


def _machine(marks: Mapping[str, Any]) -> dict[str, Any]:
    """What all rows of a suite have in common."""
    return {key: value for key, value in marks.items() if key not in ("weights", "efficient")}


def _row(name: str, parts: Sequence[Measured], rank: int | None, not_ranked: str) -> dict[str, Any]:
    suites: dict[str, list[Finished]] = {}
    for part in parts:
        suites.setdefault(part.cell.suite, []).append(part.done)
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
    return {
        "name": name,
        "rank": rank,
        "not_ranked": not_ranked,
        "overlap": "not recorded" if unknown else f"{shared} of {total}",
        "checkpoints": sorted({part.cell.command.checkpoint for part in parts}),
        "weights": sorted({str(part.marks["weights"]) for part in parts}),
        "success": _score(done),
        "seeds": _seeds(parts),
        "training": [curve for part in _one_each(parts) if (curve := _curve(part.cell.command.checkpoint)) is not None],
        "motion": {key: round(fmean(o.motion[key] for o in outcomes), 6) for key in ("path_length", "jerk")},
        "suites": {suite: _score(rows) for suite, rows in suites.items()},
        "tasks": {task: _score(done, task) for task in dict.fromkeys(spec.task for spec in specs)},
        "cells": [
            {"folder": part.cell.folder.as_posix(), "again": f"embodied-rl eval --resume {part.cell.folder.as_posix()}"}
            for part in parts
        ],
    }


def _one_each(parts: Sequence[Measured]) -> list[Measured]:
    """A part of each checkpoint."""
    return list({part.cell.number: part for part in reversed(parts)}.values())[::-1]


def _seeds(parts: Sequence[Measured]) -> dict[str, Any] | None:
    """Success of each training seed, and their mean with Student's interval; None of a single one."""
    found: dict[int, list[float]] = {}
    for part in parts:
        found.setdefault(part.cell.number, []).extend(float(o.result.success) for o in part.done.outcomes.values())
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
