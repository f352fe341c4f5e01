"""One training run, from a checked config to its report. Imports torch and the simulator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from embodied_rl.config.policies import SHIPPED
from embodied_rl.config.train import OwnPolicyConfig, TrainConfig, to_dict
from embodied_rl.factory.remote import WorkerPolicyFactory, remote_worker_factory
from embodied_rl.factory.tasks import LIBERO_SUITES, libero_notice
from embodied_rl.jobs.before_after_videos import record_videos
from embodied_rl.jobs.run_folder import add_end_times, write_run_info
from embodied_rl.jobs.run_report import result_table, write_gantt, write_run_report
from embodied_rl.jobs.train_setup import Given, RunSetup, open_run, run_info
from embodied_rl.learner.checkpoint import Checkpoints
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.scheduler.make import make_clock
from embodied_rl.telemetry.metrics import MetricsLog, make_trackers
from embodied_rl.telemetry.observer import RunObserver
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.trace import write_trace
from embodied_rl.training.on_policy import TrainOutcome, TrainSettings, train
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.signals import Interrupted
from embodied_rl.utils.timeline import Timeline
from embodied_rl.utils.timers import StageClock

SPANS = 20_000
"""Pieces of work that a timeline shows at most: the first ones."""


def run(
    config: TrainConfig, command: str, *, benchmark: str = "", resume: bool = False, given: Given | None = None
) -> TrainOutcome:
    """Train as `config` says, from the first evaluation to the report; its `output` is the run's folder.

    Args:
        command: What started the run, for its records.
        benchmark: As typed after `train`; decides what is said to the user. '' when resuming.
        given: Simulator and policy, where they are objects and not names in the config.
    """
    console, began, folder = LastingConsole(), time.perf_counter(), Path(config.output)
    for line in _notices(config, benchmark):
        _say(console, line)
    with open_run(config, given or Given(), console, resume=resume) as setup:
        config = setup.config
        stamp = run_info(setup, command)
        for name, value in stamp.items():
            _say(console, f"  {name:<14}{value}")
        write_run_info(folder, stamp, config, resume)
        try:
            outcome = _train(setup, resume, console)
        except Interrupted:
            add_end_times(folder, began)
            write_run_report(folder)
            raise
        try:
            record_videos(setup.env, setup.policy, setup.states.heldout, config, folder, "after")
        except KeyboardInterrupt:
            raise Interrupted(f"trained and saved, but not filmed; for that: {setup.resume_command}") from None
    add_end_times(folder, began)
    write_run_report(folder)
    console.print(result_table(folder))
    _say(console, f"report: {folder / 'report.html'}")
    _say(console, f"policy: {folder / 'checkpoints'} ({setup.load_command})")
    return outcome


def _say(console: Console, line: str) -> None:
    """Print a line as it is: neither wrapped, nor read as markup."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def _timeline(config: TrainConfig, clock: StageClock | Timeline, folder: Path) -> Iterator[None]:
    """Afterwards, however it ends: the trace that was asked for, and a pipelined run's chart."""
    try:
        yield
    finally:
        if config.trace:
            write_trace(Path(config.trace), clock.spans)
        if isinstance(config.scheduler, PipelinedConfig):
            write_gantt(folder, clock.spans, f"{config.scheduler.env_groups} stages, {config.scheduler.mode}")


def _train(setup: RunSetup, resume: bool, console: Console) -> TrainOutcome:
    config, folder = setup.config, Path(setup.config.output)
    trackers = make_trackers(config.track, folder, to_dict(config))
    done = Checkpoints(folder / "checkpoints", 1).newest() if resume else 0
    progress = RunProgress(config.iterations, done, console)

    def measured(updates: int) -> None:
        if updates == 0:  # after the evaluation, so that figures come first
            record_videos(setup.env, setup.policy, setup.states.heldout, config, folder, "before")

    def counted() -> dict[str, float]:
        cache = setup.policy.traits.prefix_cache
        return {} if cache is None else cache.drain()

    pipelined = isinstance(config.scheduler, PipelinedConfig)
    clock = make_clock(config.scheduler, SPANS if pipelined or config.trace else 0)
    with MetricsLog(folder / "metrics.jsonl", trackers) as log, progress, _timeline(config, clock, folder):
        return train(
            folder,
            setup.env,
            setup.policy,
            setup.files,
            _settings(config),
            setup.states.train,
            setup.states.heldout,
            RunObserver(folder, log, progress, measured, counted),
            resume=resume,
            resume_command=setup.resume_command,
            clock=clock,
            remote=remote_worker_factory(config),
            worker_policy=WorkerPolicyFactory(to_dict(config), resume),
        )


def _notices(config: TrainConfig, benchmark: str) -> list[str]:
    """What a user who asked for `libero` must know before reading a figure."""
    lines = libero_notice(config.suite) if benchmark == "libero" else []
    shipped = not isinstance(config.policy, OwnPolicyConfig) and config.policy.checkpoint == SHIPPED
    if benchmark and shipped and config.suite in LIBERO_SUITES:
        lines.append(
            "No --policy.checkpoint given: the small OpenVLA that ships with the package knows "
            "tabletop_spatial only and will not succeed on LIBERO."
        )
    elif benchmark and shipped:
        lines.append(
            "No --policy.checkpoint given: starting from the small OpenVLA that ships with the package, "
            "not from the published 7B weights."
        )
    return lines


def _settings(config: TrainConfig) -> TrainSettings:
    assert config.num_threads is not None
    return TrainSettings(
        algorithm=config.algorithm,
        learner=config.learner,
        rollout=config.rollout,
        evaluation=config.evaluation,
        checkpoint=config.checkpoint,
        iterations=config.iterations,
        seed=config.seed,
        scheduler=config.scheduler,
        workers=config.env.num_threads,
        threads=config.num_threads if config.device == "cpu" else 1,
        train_on_heldout=config.train_states == "heldout",
    )
