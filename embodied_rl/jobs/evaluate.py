"""One evaluation of a benchmark, from a checked command to its report. Imports torch and the simulator."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from embodied_rl.evaluation.benchmark import BenchmarkReport, summarise
from embodied_rl.evaluation.dimensions import by_dimension, split
from embodied_rl.evaluation.results_log import EpisodeResultsLog
from embodied_rl.factory.info import machine_info, simulator_info, versions
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.jobs.describe import eval_head
from embodied_rl.jobs.eval_report import dimension_table, result_table, write_report
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.jobs.evaluation_plus import left_out_words
from embodied_rl.jobs.evaluation_setup import (
    Evaluated,
    EvaluationPlan,
    evaluation_env,
    make_plan,
    prepare,
    run_episodes,
)
from embodied_rl.jobs.videos import missing_videos, record_failure
from embodied_rl.telemetry.info import EvalInfo
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.utils.console import LastingConsole
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
        evaluation_env(plan, ready.policy, ready.renderer) as env,
    ):
        info = _eval_info(plan, ready, env.info, words, keep=keep)
        console.facts(eval_head(info))
        began, earlier = time.perf_counter(), len(ledger.finished)
        _run_episodes(plan, env, ready.policy, ledger, console)
        took = _took(time.perf_counter() - began, len(ledger.finished) - earlier, earlier)
        counted_ones, dimensions = ledger.finished, None
        if plan.plus is not None:
            counted_ones, _ = split(ledger.finished, plan.plus.dimension)
            dimensions = by_dimension(ledger.finished, plan.plus.dimension, plan.plus.left_out)
        report = summarise(counted_ones, ready.seen.seen, has_success=env.info.has_success)
        write_page = write_report(folder, info, ready, plan, report, took, dimensions)
        console.print(result_table(report, plan.premises))
        if dimensions is not None:
            console.print(dimension_table(dimensions))
            for line in left_out_words(dimensions.left_out):
                console.say(f"not run: {line}")
        if keep:
            console.say(f"report: {folder / 'report.html'}")
        if env.info.has_success:
            _record_failures(plan, env, ready.policy, report, folder, console, write_page)


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


def _record_failures(
    plan: EvaluationPlan,
    env: SuiteEnv,
    policy: AnyPolicy,
    report: BenchmarkReport,
    folder: Path,
    console: LastingConsole,
    write_page: Callable[[], None],
) -> None:
    """Record videos of failures that have none yet, and write the page again, which shows them."""
    command = plan.command
    missing = missing_videos(report, folder, command.videos)
    if not missing:
        return
    stop = StopRequest(lambda: console.say("stopping after this frame (again: leave at once)"))
    try:
        with stop:
            for number, spec in enumerate(missing, 1):
                which = f"{number} of {len(missing)}"
                console.say(f"recording failure {which}: {sentence(spec.task)}, initial state {spec.init_state}")
                record_failure(env, policy, spec, command.mode, folder, stop.check_interrupt)
    except NotImplementedError as error:
        console.say(f"no videos: {error}")
    except KeyboardInterrupt:
        raise Interrupted(
            "evaluated and reported, but not all videos of failures are recorded; for that: "
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
