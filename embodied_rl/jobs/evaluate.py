"""One evaluation of a benchmark, from a checked command to its report. Imports torch and the simulator."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from embodied_rl.evaluation.benchmark import BenchmarkReport, summarise
from embodied_rl.evaluation.results_log import EpisodeResultsLog
from embodied_rl.factory.info import machine_info, simulator_info, versions
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.jobs.describe import (
    eval_head,
    eval_words,
    evaluated_words,
    machine_words,
    overlap_words,
    policy_words,
    weights_words,
)
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.jobs.evaluation_setup import (
    Evaluated,
    EvaluationPlan,
    make_plan,
    open_evaluation_env,
    prepare,
    run_episodes,
)
from embodied_rl.jobs.videos import made_videos, missing_videos, record_failure
from embodied_rl.telemetry.eval_report import EvalPage, rows_of, write_eval_page
from embodied_rl.telemetry.info import EvalInfo
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.tables import cells, short_labels, success_table, what_counts
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.signals import Interrupted, StopRequest
from embodied_rl.utils.words import counted, sentence, time_spent
from embodied_rl.vec_env import EnvInfo

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy


def run(
    benchmark: str, command: BenchmarkCommand, request: Mapping[str, Any], words: str, *, keep: bool = True
) -> None:
    """Evaluate as `command` says, or what is left of it, and print the result.

    Args:
        command: its `output` is the folder of the evaluation.
        request: what the folder records, so that the evaluation can be resumed.
        words: the command line.
        keep: whether the folder stays; if not, it isn't mentioned.
    """
    console = LastingConsole()
    plan = make_plan(benchmark, command, console)
    ready = prepare(plan, command)
    folder = Path(command.output)
    with (
        EpisodeResultsLog.open(folder, request, ready.marks) as ledger,
        open_evaluation_env(plan, ready.policy, ready.renderer) as env,
    ):
        info = _eval_info(plan, ready, env.info, words, keep=keep)
        console.facts(eval_head(info))
        began, earlier = time.perf_counter(), len(ledger.finished)
        _run_episodes(plan, env, ready.policy, ledger, console)
        took = _took(time.perf_counter() - began, len(ledger.finished) - earlier, earlier)
        report = summarise(ledger.finished, ready.seen.seen, has_success=env.info.has_success)
        write_page = _write(folder, info, ready, plan, report, took)
        console.print(_table(report, plan.premises))
        if keep:
            console.say(f"report: {folder / 'report.html'}")
        if env.info.has_success:
            _film(plan, env, ready.policy, report, folder, console, write_page)


def _took(seconds: float, episodes: int, earlier: int) -> str:
    """How long this session's episodes took; '' where it ran none."""
    if not episodes:
        return ""
    return time_spent(seconds) + (f" for {counted(episodes, 'episode')}; {earlier} ran before" if earlier else "")


def _run_episodes(
    plan: EvaluationPlan, env: SuiteEnv, policy: AnyPolicy, ledger: EpisodeResultsLog, console: Console
) -> None:
    total, done = len(plan.specs), len(ledger.finished)
    with RunProgress(0, console=console) as progress:
        if done:
            progress.message(f"{done} of {total} episodes are done already")
        progress.stage("evaluate", total - done)
        stop = StopRequest(lambda: progress.message("stopping after this decision (again: leave at once)"))
        try:
            with stop:
                run_episodes(
                    plan,
                    env,
                    policy,
                    plan.specs,
                    ledger,
                    on_episode=lambda result: progress.episode(
                        result.success if env.info.has_success else None, result.reward
                    ),
                    on_round=stop.check_interrupt,
                )
        except Interrupted:
            raise Interrupted(
                f"{len(ledger.finished)} of {total} episodes are saved; continue with: "
                + shlex.join(["embodied-rl", "eval", "--resume", str(ledger.folder)])
            ) from None


def _film(
    plan: EvaluationPlan,
    env: SuiteEnv,
    policy: AnyPolicy,
    report: BenchmarkReport,
    folder: Path,
    console: LastingConsole,
    write_page: Callable[[], None],
) -> None:
    """Film failures that are not filmed yet, and write the page again, which shows the films that are made."""
    command = plan.command
    missing = missing_videos(report, folder, command.videos)
    if not missing:
        return
    stop = StopRequest(lambda: console.say("stopping after this frame (again: leave at once)"))
    try:
        with stop:
            for number, spec in enumerate(missing, 1):
                which = f"{number} of {len(missing)}"
                console.say(f"filming failure {which}: {sentence(spec.task)}, initial state {spec.init_state}")
                record_failure(env, policy, spec, command.mode, folder, stop.check_interrupt)
    except NotImplementedError as error:
        console.say(f"no videos: {error}")
    except KeyboardInterrupt:
        raise Interrupted(
            "evaluated and reported, but not all failures are filmed; for that: "
            + shlex.join(["embodied-rl", "eval", "--resume", str(folder)])
        ) from None
    finally:
        write_page()


def _eval_info(plan: EvaluationPlan, ready: Evaluated, info: EnvInfo, words: str, *, keep: bool) -> EvalInfo:
    """What really runs. words: the command line."""
    command, failing = plan.command, [len(rows) for rows in plan.premises.values()]
    return EvalInfo(
        command=words,
        output=command.output if keep else None,
        suite=plan.suite,
        task_names=tuple(plan.tasks.names),
        states=command.states,
        num_states=len({(spec.task, spec.init_state) for spec in plan.specs}),
        protocol=plan.protocol.describe(),
        deviations=tuple(ready.notes),
        perturb=command.perturb,
        perturb_level=command.perturb_level,
        overlap=ready.seen,
        failing_states=sum(failing) if plan.premises else None,
        failing_tasks=sum(map(bool, failing)) if plan.premises else None,
        at_end=command.at_end,
        mode=command.mode,
        seed=command.seed,
        policy=ready.info,
        efficient=ready.efficient,
        trained_suite=ready.provenance.get("suite"),
        trained_physics_version=ready.provenance.get("era"),
        simulator=simulator_info(info, command.env, plan.tasks.scenes, ready.drawn),
        machine=machine_info(ready.device),
        versions=versions(),
    )


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


def _write(
    folder: Path, info: EvalInfo, ready: Evaluated, plan: EvaluationPlan, report: BenchmarkReport, took: str
) -> Callable[[], None]:
    """report.json and report.html in the folder, and the figures where --json says.

    Returns:
        What writes report.html anew, with the films of failures that are made by then.
    """
    command, marks = plan.command, ready.marks
    figures = dataclasses.asdict(info) | {"fingerprint": marks, "failed_premises": plan.premises, **report.to_json()}
    text = json.dumps(figures, indent=1)
    replace_text(folder / "report.json", text)
    if command.json:
        command.json.write_text(text, encoding="utf-8")
    further = {
        "Protocol": info.protocol,
        "Fingerprint": {k: v for k, v in marks.items() if k != "bundles"} | marks.get("bundles", {}),
    }
    page = EvalPage(
        title=f"{command.checkpoint} on {plan.suite}" + (", perturbed" if command.perturb else ""),
        facts=_facts(info, took),
        run_info=eval_words(info),
        report=report,
        further=further,
        premises=plan.premises,
    )
    write_page = partial(_write_page, folder, command.videos, page)
    write_page()
    return write_page


def _write_page(folder: Path, videos: int, page: EvalPage) -> None:
    made = made_videos(page.report, folder, videos)
    write_eval_page(folder / "report.html", dataclasses.replace(page, videos=made))


def _table(report: BenchmarkReport, premises: Mapping[str, Mapping[int, Sequence[str]]]) -> Table:
    tasks = list(report.tasks)
    names = dict(zip(tasks, short_labels(tasks), strict=True))
    measured, failing = report.overall.at_end is not None, any(premises.values())
    heads = (
        "task",
        "success once" if measured else what_counts(report.overall.once),
        *(["success at end"] if measured else []),
        "steps",
        *(["premise fails in"] if failing else []),
    )
    rows = []
    for label, tally in rows_of(report):
        values = [cells(tally.once), *([cells(tally.at_end)] if measured else []), (f"{tally.once.mean_steps:.0f}", "")]
        if failing:
            values.append((counted(count, "state") if (count := len(premises.get(label, ()))) else "", ""))
        rows.append((names.get(label, label), values))
    return success_table(heads, rows)
