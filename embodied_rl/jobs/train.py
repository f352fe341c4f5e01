"""One training run, from a checked config to its report. Imports torch and the simulator."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.train import TrainConfig, to_dict
from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import unmeasured
from embodied_rl.factory.remote import remote_worker_factory
from embodied_rl.factory.tasks import LIBERO_SUITES, libero_notice
from embodied_rl.jobs.describe import run_head
from embodied_rl.jobs.ranks import RunRanks, broadcast_outcome, broadcast_run, open_together, settings_of
from embodied_rl.jobs.run_folder import check_unchanged, write_run_info
from embodied_rl.jobs.run_info import end_session, is_finished
from embodied_rl.jobs.run_report import UNMEASURED, result_lines, result_table, write_run_report, write_timeline
from embodied_rl.jobs.train_setup import Overrides, RunSetup, load_command, run_info
from embodied_rl.jobs.videos import record_before_after
from embodied_rl.learner.checkpoint import POLICY, Checkpoints, iteration_of, verify
from embodied_rl.learner.distributed.join import joined
from embodied_rl.policies.checkpoints.shipped import SHIPPED, is_shipped
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.scheduler.make import make_profiler
from embodied_rl.telemetry.metrics import MetricsLog, read_metrics
from embodied_rl.telemetry.observer import RunObserver, read_evaluation
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.trace import write_trace
from embodied_rl.telemetry.trackers import Tracking
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainOutcome
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.signals import Interrupted
from embodied_rl.utils.suites import OFFICIAL_SUITES
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import SimulatorFailed

SPANS = 20_000
"""Pieces of work that a timeline shows at most: the first ones."""


def run(
    config: TrainConfig,
    command: str,
    *,
    benchmark: str = "",
    resume: bool = False,
    start: str | None = None,
    overrides: Overrides | None = None,
) -> TrainOutcome:
    """Train as `config` says, from the first evaluation to the report.

    Args:
        config: Its `output` is the run's folder, whose lock the caller holds (`jobs.run_folder`). Of a resumed run its
            own, with more iterations perhaps.
        command: What started the run, for its records.
        benchmark: As typed after `train`; decides what is said to the user. '' when resuming.
        resume: Go on from the run's newest checkpoint, or begin anew where it has none.
        start: Name of the checkpoint to go on from instead, such as iter-000010.
        overrides: Simulator and policy, where they are objects and not names in the config.
    """
    console, began, folder = LastingConsole(), time.perf_counter(), Path(config.output)
    with Tracking(config.track, folder, console) as tracking:
        with ExitStack() as stack:
            collectives = stack.enter_context(joined(ProcessRank.from_env()))
            checkpoint = _checkpoint(config, start) if resume else None
            if checkpoint is not None and iteration_of(checkpoint) == config.iterations and is_finished(folder):
                return broadcast_outcome(_finished(config, checkpoint, console), collectives)
            ranks = broadcast_run(config, checkpoint, collectives)
            console.facts(notices(config, benchmark))
            setup = stack.enter_context(open_together(ranks, overrides or Overrides(), console))
            config = setup.config
            info = run_info(setup, command)
            console.facts(run_head(info, config))
            begun = partial(write_run_info, info, config, resume=resume)
            tracking.open(to_dict(config))
            try:
                outcome = _train(setup, ranks, console, tracking, begun)
            except Interrupted:
                end_session(folder, began, finished=False)
                write_run_report(folder)
                raise
            try:
                _record_videos(setup, folder, "after", config.iterations, console, tracking)
            except KeyboardInterrupt:
                command = setup.resume_command
                raise Interrupted(f"trained and saved, but no video recorded; for that: {command}") from None
        reports = () if config.data else (outcome.before, outcome.after)
        before, after = [report.overall.value for report in reports] or (None, None)
        end_session(folder, began, finished=True, score_before=before, score_after=after)
        tracking.report(config.iterations, folder / "report.html", write_run_report(folder))
    _print_result(folder, console, load_command(setup.config))
    return outcome


def _record_videos(
    setup: RunSetup, folder: Path, when: str, updates: int, console: LastingConsole, tracking: Tracking
) -> None:
    if setup.config.data:  # nothing to film
        return
    try:
        paths = record_before_after(setup.env, setup.policy, setup.states.heldout, setup.config, folder, when)
    except (NotImplementedError, SimulatorFailed) as error:
        console.say(f"no videos {when} training: {error}")
        return
    for task, path in paths.items():
        tracking.video(updates, f"videos/{task}", path)


def _checkpoint(config: TrainConfig, start: str | None) -> Path | None:
    """The checkpoint that the run in `config.output` goes on from; None if it has none yet.

    Raises:
        UserError: there is none of that name, its policy is damaged, or the config was edited since.
    """
    path = Checkpoints(Path(config.output) / "checkpoints", config.checkpoint.keep).find(start)
    if path is None:
        return None
    content = verify(path, POLICY)
    check_unchanged(config, content["state"]["config"])
    read_metrics(Path(config.output) / "metrics.jsonl")  # the report will need all of it
    if iteration_of(path) > config.iterations:
        raise UserError(
            f"{path} has {iteration_of(path)} iterations, and the config asks for {config.iterations}: give "
            f"--iterations {iteration_of(path)} or more, or go back with --from."
        )
    return path


def _finished(config: TrainConfig, checkpoint: Path, console: LastingConsole) -> TrainOutcome:
    """What is left to do with a run that has come to its end; its report is made again, in case a kill prevented it."""
    folder = Path(config.output)
    write_run_report(folder)
    resume = shlex.join(["embodied-rl", "train", "--resume", config.output])
    console.say(
        f"{folder} is finished: it has its {counted(config.iterations, 'iteration')}. To go on for longer: "
        f"{resume} --iterations {2 * config.iterations}"
    )
    _print_result(folder, console, load_command(config))
    if config.data:
        unknown = unmeasured(config.evaluation.mode)
        return TrainOutcome(unknown, unknown, checkpoint)
    before, after = (read_evaluation(folder, iteration) for iteration in (0, config.iterations))
    return TrainOutcome(before, after, checkpoint)


def _print_result(folder: Path, console: LastingConsole, command: str) -> None:
    if (table := result_table(folder)) is None:
        console.say(UNMEASURED)
    else:
        console.print(table)
    console.facts(result_lines(folder))
    console.say(f"report: {folder / 'report.html'}")
    console.say(f"policy: {folder / 'checkpoints'}; to evaluate it:")
    console.say(f"  {command}")


@contextmanager
def _timeline(config: TrainConfig, profiler: Profiler, folder: Path) -> Iterator[None]:
    """Afterwards, however it ends: the trace that was asked for, and a pipelined run's chart."""
    try:
        yield
    finally:
        if config.trace:
            write_trace(Path(config.trace), profiler.spans)
        if isinstance(config.scheduler, PipelinedConfig):
            groups = counted(config.scheduler.env_groups or 0, "env group")
            write_timeline(folder, profiler.spans, f"{groups}, {config.scheduler.mode}")


def _train(
    setup: RunSetup, ranks: RunRanks, console: LastingConsole, tracking: Tracking, begun: Callable[[], None]
) -> TrainOutcome:
    config, folder, checkpoint = setup.config, Path(setup.config.output), ranks.checkpoint
    ppo = config.algorithm
    warmup = ppo.critic_warmup_iterations if isinstance(ppo, PPOConfig) else 0
    progress = RunProgress(config.iterations, iteration_of(checkpoint) if checkpoint else 0, console, warmup)

    def measured(updates: int) -> None:
        if updates == 0:  # after the evaluation, so that figures come first
            _record_videos(setup, folder, "before", 0, console, tracking)
        write_run_report(folder)

    def counted() -> dict[str, float]:
        cache = setup.policy.traits.prefix_cache
        return {} if cache is None else cache.drain()

    pipelined = isinstance(config.scheduler, PipelinedConfig)
    profiler = make_profiler(config.scheduler, SPANS if pipelined or config.trace else 0)
    with MetricsLog(folder / "metrics.jsonl", tracking) as log, progress, _timeline(config, profiler, folder):
        return train(
            folder,
            setup.env,
            setup.policy,
            setup.files,
            settings_of(setup),
            TaskSplit(setup.states.train, setup.states.heldout),
            RunObserver(folder, log, progress, measured, counted, begun, has_success=setup.env.info.has_success),
            RunOptions(
                resume=checkpoint,
                resume_command=setup.resume_command,
                config=to_dict(config),
                profiler=profiler,
                remote=remote_worker_factory(config),
                collectives=ranks.collectives,
            ),
        )


def notices(config: TrainConfig, benchmark: str) -> list[str]:
    """What a user must know before reading a figure: of LIBERO's suites, and of a policy that will not learn."""
    lines = libero_notice(config.suite) if benchmark == "libero" else []
    critic = config.algorithm
    if isinstance(critic, PPOConfig) and critic.critic_warmup_iterations >= config.iterations:
        alone = counted(critic.critic_warmup_iterations, "update")
        lines.append(
            f"The policy stays as it is: the critic learns alone for {alone} "
            f"(--algorithm.critic-warmup-iterations), and the run has {config.iterations}."
        )
    checkpoint = config.policy.checkpoint
    if benchmark and checkpoint == SHIPPED and config.suite in LIBERO_SUITES:
        made = f": embodied-rl collect {config.suite} --out demos, then embodied-rl sft demos --out start"
        lines.append(
            f"No policy for {config.suite} ships with the package: the one for the tabletop will not succeed on it. "
            "Name one with --policy.checkpoint" + (f", or make one{made}." if config.suite in OFFICIAL_SUITES else ".")
        )
    elif benchmark == "libero" and is_shipped(checkpoint):
        lines.append(
            "Starting from the small OpenVLA that ships with the package, not from the published 7B weights "
            "(--policy.checkpoint names another)."
        )
    return lines
