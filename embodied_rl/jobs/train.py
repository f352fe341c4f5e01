"""One training run, from a checked config to its report. Imports torch and the simulator."""

from __future__ import annotations

import dataclasses
import json
import platform
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import torch
from rich.console import Console

from embodied_rl import __version__
from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.autotune.tune import describe, further_devices, tune
from embodied_rl.cli.train import write_config
from embodied_rl.config.policies import SHIPPED
from embodied_rl.config.train import TrainConfig, kind_of, to_dict
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import TRAINED_STATES, join_states, overlap, trained_states
from embodied_rl.factory.envs import (
    cpu_count,
    cpu_name,
    describe_env_processes,
    describe_policy,
    open_policy,
    pick_device,
    pick_render_quality,
    pick_renderer,
    policy_folder,
)
from embodied_rl.factory.policies import load_options, load_policy, prepare_policy, save_policy
from embodied_rl.factory.protocol_envs import open_envs
from embodied_rl.factory.remote import WorkerPolicyFactory, cluster, remote_worker_factory, with_absolute_checkpoint
from embodied_rl.factory.tasks import LIBERO_SUITES, libero_notice, load_tasks, missing_assets
from embodied_rl.jobs.before_after_videos import record_videos
from embodied_rl.jobs.run_report import write_gantt, write_run_report
from embodied_rl.learner.checkpoint import Checkpoints
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.scheduler.make import make_profiler
from embodied_rl.scheduler.pipeline.replica import acting_device
from embodied_rl.sim.render import Choice
from embodied_rl.sim.task import Task
from embodied_rl.telemetry.metrics import MetricsLog, make_trackers
from embodied_rl.telemetry.observer import RunObserver
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.trace import write_trace
from embodied_rl.training.on_policy import PolicyFiles, RunOptions, TaskSplit, TrainSettings, train
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.signals import Interrupted
from embodied_rl.utils.threads import set_torch_threads
from embodied_rl.vec_env import EnvInfo, VecEnv

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy


SPANS = 20_000
"""Pieces of work that a timeline shows at most: the first ones."""


def run(config: TrainConfig, command: str, *, benchmark: str, resume: bool) -> None:
    """Train as `config` says; its `output` is the run's folder. benchmark: '' when resuming."""
    console, began = LastingConsole(), time.perf_counter()
    tasks = load_tasks(config.suite, config.tasks)
    for line in _notices(config, benchmark):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    renderer = pick_renderer(config.env.renderer, tasks)
    if resume:  # config.yaml names what was chosen, asked for or not
        renderer = dataclasses.replace(renderer, reason=renderer.reason.replace("asked for", "as the run began", 1))
    config = resolve(config, renderer, tasks)
    assert config.num_threads is not None
    set_torch_threads(config.num_threads)
    policy, checkpoint = open_policy_of(config, resume)
    states = _States.of(config, tasks, checkpoint)
    if isinstance(config.scheduler, PipelinedConfig):
        acting_device(config.scheduler.act_device, policy)  # refused before anything is written
    if config.autotune:
        config = _tuned(config, tasks, policy, states, console)
    with cluster(config), open_envs(tasks, config.env, config.protocol, policy) as env:
        stamp = _run_info(config, command, tasks, env.info, renderer, describe_policy(policy, checkpoint), states)
        for name, value in stamp.items():
            console.print(f"  {name:<14}{value}", soft_wrap=True, markup=False, highlight=False)
        folder = Path(config.output)
        _write_run_info(folder, stamp, config, resume)
        try:
            _train(config, states, env, policy, resume, console)
        except Interrupted:
            _add_end_times(folder, began)
            write_run_report(folder)
            raise
        try:
            record_videos(env, policy, states.heldout, config, folder, "after")
        except KeyboardInterrupt:
            raise Interrupted(f"trained and saved, but not filmed; for that: {_resume_command(config)}") from None
    _add_end_times(folder, began)
    write_run_report(folder)
    _print_result(folder, console)


def _resume_command(config: TrainConfig) -> str:
    return shlex.join(["embodied-rl", "train", "--resume", config.output])


@dataclasses.dataclass(frozen=True, slots=True)
class _States:
    """Initial states by task. train: drawn from; heldout: evaluated; known: all that the policy will have been trained
    on, None where its checkpoint does not say what came before."""

    train: dict[str, list[int]]
    heldout: dict[str, list[int]]
    known: dict[str, list[int]] | None

    @classmethod
    def of(cls, config: TrainConfig, tasks: Sequence[Task], checkpoint: str) -> _States:
        heldout = {task.name: list(task.heldout_states) for task in tasks}
        train = heldout if config.train_states == "heldout" else {task.name: list(task.train_states) for task in tasks}
        earlier = trained_states(read_provenance(policy_folder(checkpoint)))
        return cls(train, heldout, join_states(earlier, train))

    def overlap(self, config: TrainConfig) -> str:
        rows = {task: states[: config.evaluation.states_per_task] for task, states in self.heldout.items()}
        return overlap(self.known, evaluation_specs(rows, config.seed)).describe()


def _tuned(
    config: TrainConfig, tasks: Sequence[Task], policy: AnyPolicy, states: _States, console: Console
) -> TrainConfig:
    """The config with the scheduler that suits this machine; a run that is resumed keeps its own."""
    # a probe's times are those of one thread
    one = dataclasses.replace(config.env, num_threads=1, processes=None)
    with open_envs(tasks, one, config.protocol, policy) as env:
        tuning = tune(config, env, policy, states.train, cpu_count(), further_devices(config))
    for line in describe(tuning):
        console.print(f"  autotune      {line}", soft_wrap=True, markup=False, highlight=False)
    return tuning.config


@contextmanager
def _timeline(config: TrainConfig, profiler: Profiler, folder: Path) -> Iterator[None]:
    """Afterwards, however it ends: the trace that was asked for, and a pipelined run's chart."""
    try:
        yield
    finally:
        if config.trace:
            write_trace(Path(config.trace), profiler.spans)
        if isinstance(config.scheduler, PipelinedConfig):
            write_gantt(folder, profiler.spans, f"{config.scheduler.env_groups} stages, {config.scheduler.mode}")


def _train(
    config: TrainConfig, states: _States, env: VecEnv, policy: AnyPolicy, resume: bool, console: Console
) -> None:
    folder = Path(config.output)
    trackers = make_trackers(config.track, folder, to_dict(config))
    done = Checkpoints(folder / "checkpoints", 1).newest() if resume else 0
    progress = RunProgress(config.iterations, done, console)

    def measured(updates: int) -> None:
        if updates == 0:  # after the evaluation, so that figures come first
            record_videos(env, policy, states.heldout, config, folder, "before")

    def counted() -> dict[str, float]:
        store = getattr(policy, "kept", None)
        return {} if store is None else store.drain()

    pipelined = isinstance(config.scheduler, PipelinedConfig)
    profiler = make_profiler(config.scheduler, SPANS if pipelined or config.trace else 0)
    with MetricsLog(folder / "metrics.jsonl", trackers) as log, progress, _timeline(config, profiler, folder):
        train(
            folder,
            env,
            policy,
            _policy_files(policy, config, states),
            _settings(config),
            TaskSplit(states.train, states.heldout),
            RunObserver(folder, log, progress, measured, counted),
            RunOptions(
                resume=resume,
                resume_command=_resume_command(config),
                profiler=profiler,
                remote=remote_worker_factory(config),
                worker_policy=WorkerPolicyFactory(to_dict(config), resume),
            ),
        )


def _notices(config: TrainConfig, benchmark: str) -> list[str]:
    """What a user who asked for `libero` must know before reading a figure."""
    lines = libero_notice(config.suite) if benchmark == "libero" else []
    if benchmark and config.policy.checkpoint == SHIPPED and config.suite in LIBERO_SUITES:
        lines.append(
            "No --policy.checkpoint given: the small OpenVLA that ships with the package knows "
            "tabletop_spatial only and will not succeed on LIBERO."
        )
    elif benchmark and config.policy.checkpoint == SHIPPED:
        lines.append(
            "No --policy.checkpoint given: starting from the small OpenVLA that ships with the package, "
            "not from the published 7B weights."
        )
    return lines


def resolve(config: TrainConfig, renderer: Choice, tasks: Sequence[Task]) -> TrainConfig:
    """Fill in everything that was left to the program, so that config.yaml repeats the run."""
    device, scheduler, cores = pick_device(config.device), config.scheduler, cpu_count()
    sim_threads = config.env.num_threads or cores
    if isinstance(scheduler, PipelinedConfig):
        on_cpu = (scheduler.act_device or device).startswith("cpu")
        stages = scheduler.num_env_groups(config.env.num_envs, cpu=on_cpu)
        size = make_algorithm(config.algorithm).group_size
        ahead = scheduler.lookahead(
            config.env.num_envs, config.rollout.groups(size), size, streams=config.learner.minibatch_groups is not None
        )
        scheduler = dataclasses.replace(scheduler, env_groups=stages, max_lookahead=ahead.groups)
    env = dataclasses.replace(
        config.env,
        renderer=renderer.name,
        render_quality=pick_render_quality(config.env.render_quality, tasks),
        num_threads=sim_threads,
    )
    threads = config.num_threads or cores
    return with_absolute_checkpoint(
        dataclasses.replace(config, env=env, num_threads=threads, device=device, scheduler=scheduler)
    )


def open_policy_of(config: TrainConfig, resume: bool) -> tuple[AnyPolicy, str]:
    """The policy to begin or go on with, and the checkpoint that it comes from."""
    checkpoint, options = config.policy.checkpoint, load_options(config.policy)
    if resume:
        folder = Path(config.output) / "checkpoints"
        checkpoint = str(Checkpoints(folder, config.checkpoint.keep).load_latest().policy)
        options = None  # our own checkpoints say everything themselves
    policy = open_policy(checkpoint, config.device, options)
    prepare_policy(policy, config.policy, policy_folder(checkpoint))
    policy.with_value = isinstance(config.algorithm, PPOConfig)
    return policy, checkpoint


def _policy_files(policy: AnyPolicy, config: TrainConfig, states: _States) -> PolicyFiles:
    provenance = {
        "command": "embodied-rl train",
        "version": __version__,
        "seed": config.seed,
        "suite": config.suite,
        "renderer": config.env.renderer,
        "config": to_dict(config),
        **({} if states.known is None else {TRAINED_STATES: states.known}),
    }

    def load(folder: Path) -> None:
        policy.model.load_state_dict(load_policy(folder).model.state_dict())

    return PolicyFiles(lambda folder: save_policy(policy, folder, provenance), load)


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


def _run_info(
    config: TrainConfig,
    command: str,
    tasks: Sequence[Task],
    info: EnvInfo,
    renderer: Choice,
    weights: dict[str, Any],
    states: _States,
) -> dict[str, Any]:
    """What really runs, in words."""
    (height, width), views, learner = info.image_shape, len(info.cameras), config.learner
    missing = missing_assets(tasks)
    return {
        "command": command,
        "suite": f"{config.suite}, {len(tasks)} tasks: {', '.join(task.name.partition('/')[2] for task in tasks)}",
        "protocol": config.protocol,
        **({"assets": f"APPROXIMATE: {len(missing)} official files are stand-ins"} if missing else {}),
        "overlap": states.overlap(config),
        "simulator": f"{info.simulator}, {config.env.num_envs} worlds, {describe_env_processes(config.env)}",
        "renderer": f"{info.renderer} ({renderer.reason}), {config.env.render_quality} frames, "
        f"{views} cameras of {height}x{width}",
        "machine": f"{cpu_name()}, {cpu_count()} cores",
        "device": f"{config.device}, torch {torch.__version__}, {config.num_threads} threads",
        **weights,
        "algorithm": f"{kind_of('algorithm', config.algorithm)}, {config.rollout.episodes_per_iteration} episodes an "
        f"iteration, {config.iterations} iterations",
        "scheduler": config.scheduler.describe(),
        **(
            {"learner": f"{learner.num_processes} processes, {'FSDP2' if learner.fsdp else 'replicated'}"}
            if learner.num_processes > 1
            else {}
        ),
        **(
            {"evaluates": f"a running mean of the weights (1/{learner.average_updates} an update), which is saved too"}
            if learner.average_updates
            else {}
        ),
        "seed": config.seed,
        "output": config.output,
        "versions": f"embodied-rl {__version__}, mujoco {mujoco.__version__}, python {platform.python_version()}",
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _write_run_info(folder: Path, stamp: dict[str, Any], config: TrainConfig, resume: bool) -> None:
    """run.json has a stamp for each session: a run may be resumed on another machine."""
    path = folder / "run.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sessions = json.loads(path.read_text()) if resume and path.is_file() else []
        _replace(path, json.dumps([*sessions, stamp], indent=1))
        write_config(config)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; choose another --output.") from error


def _add_end_times(folder: Path, began: float) -> None:
    """Add to run.json how long this session took in all, evaluations and films too; a killed session has no such line.

    began: `time.perf_counter()` when it started. CPU time is the process's own, with all its threads and its imports.
    """
    path = folder / "run.json"
    *earlier, last = json.loads(path.read_text(encoding="utf-8"))
    times = {"seconds": round(time.perf_counter() - began, 1), "cpu_seconds": round(time.process_time(), 1)}
    _replace(path, json.dumps([*earlier, last | times], indent=1))


def _replace(path: Path, text: str) -> None:
    """Write the whole file or leave what was there."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _print_result(folder: Path, console: Console) -> None:
    from embodied_rl.jobs.run_report import result_table

    console.print(result_table(folder))
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False, highlight=False)
    console.print(
        f"policy: {folder / 'checkpoints'} (embodied-rl eval --checkpoint {folder})",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
