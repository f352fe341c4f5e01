"""What an evaluation leaves behind: report.json, a page with videos of failures, and the table of a terminal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from embodied_rl.evaluation.benchmark import BenchmarkReport, Tally
from embodied_rl.evaluation.change import Change
from embodied_rl.evaluation.dimensions import ALL, DimensionReport
from embodied_rl.jobs.describe import (
    eval_words,
    evaluated_words,
    machine_words,
    overlap_words,
    policy_words,
    weights_words,
)
from embodied_rl.jobs.evaluation_setup import Evaluated, EvaluationPlan
from embodied_rl.jobs.videos import made_videos
from embodied_rl.sim.libero.plus.names import DIMENSIONS
from embodied_rl.telemetry.info import EvalInfo
from embodied_rl.telemetry.pages import write_page
from embodied_rl.telemetry.tables import (
    cells,
    change_cells,
    figure,
    interval_words,
    short_labels,
    success_table,
    what_counts,
)
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.suites import LIBERO_PLUS
from embodied_rl.utils.words import counted

DIMENSION_HEADS = ("perturbed", "success once", "unperturbed", "change")
Premises = Mapping[str, Mapping[int, Sequence[str]]]
"""By task and evaluated initial state, what fails of what the task says; empty where nobody judged."""


def write_report(
    folder: Path,
    info: EvalInfo,
    ready: Evaluated,
    plan: EvaluationPlan,
    report: BenchmarkReport,
    took: str,
    dimensions: DimensionReport | None = None,
) -> Callable[[], None]:
    """Write report.json and report.html into the folder, and the figures where --json says.

    Args:
        folder: of the evaluation.
        info: what ran.
        ready: the policy that was evaluated.
        plan: its episodes.
        report: what was found.
        took: how long, in words.
        dimensions: what was found on LIBERO-plus.

    Returns:
        What writes report.html anew, with the videos of failures that are made by then.
    """
    command, marks = plan.command, ready.marks
    figures = dataclasses.asdict(info) | {"fingerprint": marks, "failed_premises": plan.premises, **report.to_json()}
    if dimensions is not None:
        figures[LIBERO_PLUS] = dimensions.to_json()
    text = json.dumps(figures, indent=1)
    replace_text(folder / "report.json", text)
    if command.json:
        command.json.write_text(text, encoding="utf-8")
    once = report.overall.once
    measured = f"Success in {once.successes} of" if once.has_success else "Mean return of"
    further = {
        "Protocol": info.protocol,
        "Fingerprint": {k: v for k, v in marks.items() if k != "bundles"} | marks.get("bundles", {}),
    }

    def write() -> None:
        write_page(
            folder / "report.html",
            "evaluation.html",
            title=f"{command.checkpoint} on {plan.suite}" + (", perturbed" if command.perturb else ""),
            large=figure(once),
            small=f"{measured} {once.episodes} episodes, 95 % interval {interval_words(once)}; "
            f"{once.mean_steps:.0f} steps an episode.",
            first=_facts(info, took),
            run_info=eval_words(info),
            has_success=once.has_success,
            counts=what_counts(once),
            rows=_rows(report),
            dimension_heads=DIMENSION_HEADS,
            dimensions=[] if dimensions is None else dimension_rows(dimensions),
            premises=plan.premises,
            failing=_failing(report, plan.premises),
            videos=made_videos(report, folder, command.videos),
            further=further,
        )

    write()
    return write


def _facts(info: EvalInfo, took: str) -> dict[str, str]:
    """What a reader of the page wants to know first."""
    return {
        "policy": policy_words(info.policy),
        "weights": weights_words(info.policy),
        "tasks and states": evaluated_words(info),
        "overlap with training": overlap_words(info),
        "protocol": info.protocol["name"],
        "deviations": "; ".join(info.deviations),
        "machine": machine_words(info.machine),
        "took": took,
    }


def _rows(report: BenchmarkReport) -> list[tuple[str, Tally]]:
    """All tasks together, the episodes from states that were not trained on (if that is a part of them), each task."""
    unseen = [("states not trained on", report.unseen)] if report.unseen is not None else []
    return [("all tasks", report.overall), *unseen, *report.tasks.items()]


def dimension_rows(report: DimensionReport) -> list[tuple[str, list[tuple[str, str]]]]:
    """A row for each dimension, in the published order, and one for all: label, and cells as figure and interval."""
    found = []
    for name in (*DIMENSIONS, ALL):
        if name in report.dimensions:
            row = report.dimensions[name]
            change = change_cells(Change(row.difference, row.low, row.high, row.pairs))
            found.append((name, [cells(row.perturbed), (f"{row.unperturbed.rate:.1%}", ""), change]))
        elif name in report.left_out:
            found.append((name, [(f"0 of {sum(report.left_out[name].values())}", "not run"), ("", ""), ("", "")]))
    return found


def dimension_table(report: DimensionReport) -> Table:
    """LIBERO-plus' scores for a terminal."""
    return success_table(DIMENSION_HEADS, dimension_rows(report))


def _failing(report: BenchmarkReport, premises: Premises) -> list[tuple[EpisodeSpec, Sequence[str], str]]:
    """The episodes from states in which a premise fails, what fails there, and how each ended."""
    found = []
    for outcome in report.outcomes:
        spec = outcome.result.spec
        if texts := premises.get(spec.task, {}).get(spec.init_state):
            found.append((spec, texts, "success" if outcome.result.success else "failure"))
    return found


def result_table(report: BenchmarkReport, premises: Premises) -> Table:
    """The scores for a terminal."""
    tasks = list(report.tasks)
    names = dict(zip(tasks, short_labels(tasks), strict=True))
    measured, failing = report.overall.at_end is not None, any(premises.values())
    heads = (
        "task",
        "success once" if measured else what_counts(report.overall.once),
        *(["success at end"] if measured else []),
        "steps",
        *(["precondition fails in"] if failing else []),
    )
    rows = []
    for label, tally in _rows(report):
        values = [cells(tally.once), *([cells(tally.at_end)] if measured else []), (f"{tally.once.mean_steps:.0f}", "")]
        if failing:
            values.append((counted(count, "state") if (count := len(premises.get(label, ()))) else "", ""))
        rows.append((names.get(label, label), values))
    return success_table(heads, rows)
