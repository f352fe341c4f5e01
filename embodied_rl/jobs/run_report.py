"""The report of a run, made from its folder alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from embodied_rl.config.train import load_yaml
from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.jobs.before_after_videos import video_path
from embodied_rl.jobs.run_folder import read_run_info
from embodied_rl.learner.checkpoint import STATE, Checkpoints, verify
from embodied_rl.rollout.broken_states import name_states
from embodied_rl.telemetry.curve import curve_of, draw_curve
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.telemetry.observer import evaluation_path, read_evaluation
from embodied_rl.telemetry.report import Clip, Outcome, Report, write_report
from embodied_rl.telemetry.tables import cells, short_labels, success_table
from embodied_rl.telemetry.trace import draw_gantt, first_iterations
from embodied_rl.utils.profiler import Span
from embodied_rl.utils.words import counted, moved

GANTT = "timeline.png"


def write_run_report(folder: Path) -> None:
    """Write report.html and, where matplotlib is installed, learning_curve.png; leaves a run without evaluation alone.

    Works on a run that was stopped: the columns 'after' then say so.
    """
    outcomes = _outcomes(folder)
    if not outcomes:
        return
    stamp = read_run_info(folder)[-1]
    rows = read_metrics(folder / "metrics.jsonl")
    title = f"{stamp['suite'].partition(',')[0]}, {stamp['algorithm'].partition(',')[0]}, seed {stamp['seed']}"
    curve = draw_curve(curve_of(rows), title) if importlib.util.find_spec("matplotlib") else None
    if curve:
        (folder / "learning_curve.png").write_bytes(curve)
    else:
        stamp["learning curve"] = "not drawn: pip install 'embodied-rl[report]'"
    config = (folder / "config.yaml").read_text(encoding="utf-8")
    chart = folder / GANTT
    gantt = chart.read_bytes() if chart.is_file() else None
    clips, left_out = _clips(folder, outcomes), _left_out(folder)
    write_report(folder / "report.html", Report(title, stamp, outcomes, config, rows, curve, clips, gantt, left_out))


def write_gantt(folder: Path, spans: Sequence[Span], title: str) -> None:
    """Draw who did what in the first iterations into the run's folder; nothing without matplotlib."""
    if spans and importlib.util.find_spec("matplotlib"):
        (folder / GANTT).write_bytes(draw_gantt(first_iterations(spans), title))


def result_table(folder: Path) -> Table:
    """Success on held-out states before and after, with Wilson intervals."""
    outcomes = _outcomes(folder)
    labels = ["all tasks", *short_labels([outcome.label for outcome in outcomes[1:]])]
    rows = [(label, (cells(outcome.before), _after(outcome))) for label, outcome in zip(labels, outcomes, strict=True)]
    what = "success" if outcomes[0].before.has_success else "mean return"
    return success_table((f"{what} on held-out states", "before", "after"), rows)


def _after(outcome: Outcome) -> tuple[str, str]:
    if outcome.after is None:
        return "not yet", ""
    value, interval = cells(outcome.after)
    if outcome.after.has_success:
        return value, interval
    return value, f"{interval}\n{moved(outcome.before.mean_return, outcome.after.mean_return)}"


def _outcomes(folder: Path) -> list[Outcome]:
    """All tasks together, then each; empty before the first evaluation."""
    before = _evaluation(folder, 0)
    if before is None:
        return []
    after = _evaluation(folder, load_yaml(folder / "config.yaml").iterations)
    each = [Outcome(task, score, after.tasks[task] if after else None) for task, score in before.tasks.items()]
    return [Outcome("all tasks", before.overall, after.overall if after else None), *each]


def _evaluation(folder: Path, iteration: int) -> EvalReport | None:
    path = evaluation_path(folder, iteration)
    if not path.is_file():
        return None
    try:
        return read_evaluation(folder, iteration)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): the run's report needs it; restore the file.") from error


def _left_out(folder: Path) -> str:
    """Which initial states training left out, as the newest checkpoint says; '' where it left none out."""
    checkpoint = Checkpoints(folder / "checkpoints", 1).find()
    if checkpoint is None:
        return ""
    broken = verify(checkpoint, STATE)["state"]["sampler"].get("broken")
    if broken is None:
        return ""
    states = [(task, state) for task, state, _ in broken["found"]]
    return f"The simulator breaks from {counted(len(states), 'initial state')}: {name_states(states)}."


def _clips(folder: Path, outcomes: list[Outcome]) -> list[Clip]:
    clips: list[Clip] = []
    for outcome in outcomes[1:]:
        before, after = (video_path(folder, outcome.label, when) for when in ("before", "after"))
        if before.is_file():
            clips.append(Clip(outcome.label, before.read_bytes(), after.read_bytes() if after.is_file() else None))
    return clips
