"""The page of a run, made from its folder alone: one HTML file that opens offline, rewritten after every evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from embodied_rl.config.train import TrainConfig, kind_of
from embodied_rl.errors import UserError
from embodied_rl.evaluation.change import Change, paired_change
from embodied_rl.evaluation.evaluate import EvalReport, Score
from embodied_rl.jobs.describe import run_words
from embodied_rl.jobs.run_folder import CONFIG_FILE
from embodied_rl.jobs.run_records import RunRecord, read_record
from embodied_rl.jobs.videos import video_path
from embodied_rl.learner.checkpoint import STATE, Checkpoints, verify
from embodied_rl.rollout.broken_states import name_states
from embodied_rl.telemetry.curve import plots_of, robot_time
from embodied_rl.telemetry.observer import evaluation_path, read_evaluation
from embodied_rl.telemetry.pages import render
from embodied_rl.telemetry.plots import draw
from embodied_rl.telemetry.tables import cells, change_words, figure, interval_words, short_labels, success_table
from embodied_rl.telemetry.trace import draw_timeline, first_iterations
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.profiler import Span
from embodied_rl.utils.words import counted, moved, sentence, time_spent

TIMELINE = "timeline.svg"
UNMEASURED = "success is not known: the run opened no simulator, and learned from data on disk"


@dataclass(frozen=True, slots=True)
class TaskOutcome:
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
        when: of which policy `TaskOutcome.after` is, such as 'after 30 updates'.
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
    outcomes: Sequence[TaskOutcome]
    config: str
    metrics: Sequence[Mapping[str, Any]] = ()
    clips: Sequence[Clip] = field(default_factory=tuple)
    timeline: str = ""
    left_out: str = ""


def write_run_report(folder: Path) -> str:
    """Write report.html and return its head as Markdown; leaves a run alone, with '', that is yet to be evaluated.

    Works on a run that goes on or was stopped: the columns 'after' are then of its newest evaluation.
    """
    record, timeline = read_record(folder), folder / TIMELINE
    outcomes, updates = _outcomes(record)
    config = record.config
    if not outcomes and not config.data:
        return ""
    progress = f"{record.updates} of {counted(config.iterations, 'update')} so far"
    report = Report(
        title=_title(config),
        state=f"Training run, {'finished' if record.finished else progress}",
        when=f"after {counted(updates, 'update')}" if updates else "after",
        facts=_facts(record, [sentence(outcome.label) for outcome in outcomes[1:]]),
        run_info=run_words(record.sessions[-1], config),
        outcomes=outcomes,
        config=(folder / CONFIG_FILE).read_text(encoding="utf-8"),
        metrics=record.metrics,
        clips=_clips(folder, outcomes),
        timeline=timeline.read_text(encoding="utf-8") if timeline.is_file() else "",
        left_out=_left_out(folder),
    )
    replace_text(folder / "report.html", render_report(report))
    return render_report(report, "run.md")


def _title(config: TrainConfig) -> str:
    policy, algorithm = kind_of("policy", config.policy), kind_of("algorithm", config.algorithm)
    return f"{policy} on {' '.join(config.data) or config.suite}, {algorithm}, seed {config.seed}"


# The figures that a reader looks for first; the rest is in metrics.jsonl.
_METRIC_COLUMNS = (
    "step",
    "rollout/success",
    "eval/success",
    "rollout/reward",
    "eval/return",
    "rollout/episodes",
    "rollout/robot_minutes",
    "train/own_successes",
    "rollout/filtered_groups",
    "rollout/broken_groups",
    "train/loss",
    "speed/decisions_per_s",
)


def render_report(report: Report, template: str = "run.html") -> str:
    """The page as text: the result and whose it is first, what ran folded below; run.md: the first of these alone."""
    total = report.outcomes[0] if report.outcomes else None
    scores = [] if total is None else [total.before] + ([total.after] if total.after else [])
    return render(
        template,
        title=report.title,
        report=report,
        headline=" \N{RIGHTWARDS ARROW} ".join(map(figure, scores)) or "Not measured",
        summary=f"{UNMEASURED[0].upper()}{UNMEASURED[1:]}." if total is None else _summary(total, report.when),
        plots=[draw(plot) for plot in plots_of(report.metrics)] if total else [],
        columns=_columns(report.metrics),
    )


def _summary(total: TaskOutcome, when: str) -> str:
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


def write_timeline(folder: Path, spans: Sequence[Span], title: str) -> None:
    """Draw who did what in the first iterations into the run's folder."""
    if spans:
        (folder / TIMELINE).write_text(draw_timeline(first_iterations(spans), title), encoding="utf-8")


def _facts(record: RunRecord, names: Sequence[str]) -> dict[str, Any]:
    """Whose score it is, of what, and how long it took."""
    words = run_words(record.sessions[-1], record.config)
    return {
        "policy": words.get("policy"),
        "weights before training": words.get("weights"),
        "tasks": _tasks(record.config, names),
        "data": words.get("imitates") if record.config.data else "",
        "training": words.get("algorithm"),
        "schedule": words.get("scheduler"),
        "robot time": robot_time(record.metrics) or None,
        "took": _took(record),
        "machine": words.get("machine"),
        "overlap with training": words.get("overlap"),
    }


def _tasks(config: TrainConfig, names: Sequence[str]) -> str:
    return f"{config.suite}, {names[0] if len(names) == 1 else counted(len(names), 'task')}" if names else ""


def _took(record: RunRecord) -> str:
    """All sessions that said so; before one has ended, its updates."""
    seconds = record.seconds
    if seconds is not None:
        cpu = "" if record.cpu_seconds is None else f"; {time_spent(record.cpu_seconds)} of CPU time"
        return f"{time_spent(seconds)}, evaluations and videos too{cpu}"
    updates = sum(row.get("time/iteration") or 0.0 for row in record.metrics)
    return f"{time_spent(updates)} for its updates, evaluations and videos apart"


def result_table(folder: Path) -> Table | None:
    """Success on held-out states before and after, with Wilson intervals; None where nothing is evaluated."""
    outcomes, _ = _outcomes(read_record(folder))
    if not outcomes:
        return None
    labels = ["all tasks", *short_labels([outcome.label for outcome in outcomes[1:]])]
    rows = [(label, (cells(outcome.before), _after(outcome))) for label, outcome in zip(labels, outcomes, strict=True)]
    what = "success" if outcomes[0].before.has_success else "mean return"
    return success_table((f"{what} on held-out states", "before", "after"), rows)


def result_lines(folder: Path) -> list[str]:
    """The change of all tasks together with its interval; nothing where the evaluations are not of the same states."""
    outcomes, _ = _outcomes(read_record(folder))
    return [f"change: {change_words(change)}"] if outcomes and (change := outcomes[0].change) else []


def _after(outcome: TaskOutcome) -> tuple[str, str]:
    if outcome.after is None:
        return "not yet", ""
    value, interval = cells(outcome.after)
    if outcome.after.has_success:
        return value, interval
    return value, f"{interval}\n{moved(outcome.before.mean_return, outcome.after.mean_return)}"


def _outcomes(record: RunRecord) -> tuple[list[TaskOutcome], int]:
    """All tasks together, then each, and how many updates the newest evaluation comes after.

    No outcomes before the first evaluation; 0 updates before there is a second one.
    """
    before = _evaluation(record.folder, 0)
    if before is None:
        return [], 0
    updates = max(record.evaluations(), default=0)
    after = _evaluation(record.folder, updates) if updates else None
    if after is None:
        return [TaskOutcome("all tasks", before.overall), *(TaskOutcome(*item) for item in before.tasks.items())], 0
    total = TaskOutcome("all tasks", before.overall, after.overall, paired_change(before, after))
    each = [
        TaskOutcome(task, score, after.tasks[task], paired_change(before, after, task))
        for task, score in before.tasks.items()
    ]
    return [total, *each], updates


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


def _clips(folder: Path, outcomes: list[TaskOutcome]) -> list[Clip]:
    clips: list[Clip] = []
    for outcome in outcomes[1:]:
        before, after = (video_path(folder, outcome.label, when) for when in ("before", "after"))
        if before.is_file():
            clips.append(Clip(outcome.label, before.read_bytes(), after.read_bytes() if after.is_file() else None))
    return clips
