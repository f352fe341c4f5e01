"""Records demonstrations of an expert, scripted or a policy: plan, attempts in processes, the dataset."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from embodied_rl.config.collect import AUTO, CollectCommand
from embodied_rl.config.env import GymnasiumConfig, MujocoConfig
from embodied_rl.config.suites import find_suite
from embodied_rl.config.train import kind_of
from embodied_rl.data import collect, writer
from embodied_rl.data.layout import ACTION_NAMES, HAND_ACTION_NAMES, HAND_NAMES, PROPRIO_NAMES, DatasetSpec
from embodied_rl.data.progress import ProgressBar
from embodied_rl.errors import UserError, refuse_twice, suggest
from embodied_rl.factory.demonstrations import hold_bench, open_bench
from embodied_rl.factory.experts import DRAWN_SIZE, SCRIPTED, Stage, describe_stage, hold_stage, stage_of
from embodied_rl.factory.premises import judge, require_train_states
from embodied_rl.factory.scenes import announce_compilation, pick_render_quality
from embodied_rl.factory.tasks import (
    LIBERO_SUITES,
    bundles_digest,
    load_tasks,
    physics_version,
    stand_in_files,
    unknown_task,
)
from embodied_rl.sim.aloha.robot import NAMES as ALOHA_NAMES
from embodied_rl.sim.libero.protocol import LIBERO, NATIVE, protocol
from embodied_rl.sim.tabletop import suites, with_fresh_states
from embodied_rl.telemetry.tables import stand_in_words
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.lock import locked
from embodied_rl.utils.output import folder_bytes
from embodied_rl.utils.suites import ALOHA_SUITES
from embodied_rl.utils.words import counted, file_size
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from embodied_rl.config.env import EnvConfig
    from embodied_rl.config.suites import Suite
    from embodied_rl.data.collect import Attempt, Bench, Job
    from embodied_rl.factory.tasks import SuiteTask
    from embodied_rl.rollout.sampler import TaskStates
    from embodied_rl.sim.libero.protocol import Protocol
    from embodied_rl.vec_env import EnvInfo

ALL_SUITES = "tabletop"
EXPECTED_SUCCESS = 0.95
_DART_NOISE_RATE = 0.04


def run(command: CollectCommand, line: str) -> bool:
    """Record, or go on with what a stopped collection has kept.

    Args:
        command: what to record, and where.
        line: the command line, for the dataset's metadata.

    Returns:
        Whether the dataset is written; False when Ctrl-C stopped it.

    Raises:
        UserError: The suite, its tasks or the disk do not allow it.
    """
    with locked(command.out.with_name(command.out.name + ".lock"), f"collecting {command.out}"):
        try:
            return _collect(command, line)
        except OSError as error:
            raise UserError(
                f"cannot write {command.out} ({error.strerror}): free some disk space or choose another --out; "
                "the same command goes on where it stopped"
            ) from error


@dataclass(frozen=True, slots=True)
class _Names:
    """What the numbers of proprio and of actions are called, and the robot."""

    state: tuple[str, ...] = PROPRIO_NAMES
    action: tuple[str, ...] = ACTION_NAMES
    robot: str = "panda"


@dataclass(frozen=True, slots=True)
class _Source:
    """What is recorded: the initial states by task, and what opens a simulator with an expert in a worker process.

    settings: what decides the content of the dataset; a stopped collection only continues with the same.
    """

    info: EnvInfo
    states: TaskStates
    names: _Names
    build: Callable[[], Bench]
    settings: dict[str, Any]
    split: str


def _collect(command: CollectCommand, line: str) -> bool:
    console = LastingConsole()
    table = find_suite(command.suite)
    source = _scenes(command) if table is None or table.observes == "images" else _simulator(command, table)
    info, states, split, settings = source.info, source.states, source.split, source.settings
    console.print(
        f"{counted(len(states), 'task')} of {command.suite}; {info.simulator}; renderer {info.renderer}; "
        f"{counted(len(info.cameras), 'camera')} of {_size(info)} pixels; {counted(command.workers, 'worker')}",
        soft_wrap=True,
    )
    if stand_ins := settings.get("stand_in_files"):
        console.print(f"assets: {stand_in_words(stand_ins)}", soft_wrap=True)
    begun = writer.begin(command.out, settings)
    attempts = collect.plan(states, command.episodes_per_task, command.seed)
    names, fps = source.names, max(1, round(info.control_hz))
    spec = DatasetSpec(info.cameras, info.image_shape, names.state, names.action, fps, names.robot)
    job = collect.Job(begun, spec, settings["dart_noise_rate"], _video_folder(command), command.keep == "all")
    try:
        _attempt(source.build, job, attempts, command.workers, console)
    except KeyboardInterrupt:
        kept = len(writer.stored(begun)[0])
        console.print(
            f"stopped; {counted(kept, 'episode')} are kept in {begun}. The same command goes on.", soft_wrap=True
        )
        return False
    failed = writer.stored(begun)[1]
    rows = collect.summary(attempts, failed)
    used = {} if split == "fresh" else collect.states_used(attempts)
    _report(rows, failed, console, has_success=info.has_success)
    writer.finalize(command.out, spec, _run_info(settings, rows, failed, line) | {"train_states": used})
    kept = len(attempts) if job.keep_failures else sum(row["successes"] for row in rows)
    console.print(
        f"wrote {command.out}: {counted(kept, 'episode')}, {file_size(folder_bytes(command.out))}", soft_wrap=True
    )
    return True


def _scenes(command: CollectCommand) -> _Source:
    """A built-in suite, or one of LIBERO's."""
    for name, usual in (("expert", SCRIPTED), ("cameras", ()), ("instruction", None)):
        if getattr(command, name) != usual:
            what = "the scripted expert acts" if name == "expert" else "the suite says it itself"
            raise UserError(f"--{name}: {what} in {command.suite}; leave the option out.")
    tasks, split = _tasks(command), _split(command)
    info = _describe(tasks, command)
    states = {task.name: task.heldout_states if split == "heldout" else task.train_states for task in tasks}
    settings = _settings(command, tasks, info)
    return _Source(info, states, _Names(), partial(_bench, command), settings, split)


def _simulator(command: CollectCommand, table: Suite) -> _Source:
    """Another suite that shows images: who acts is its own expert, or a policy."""
    if command.split == "fresh":
        raise UserError(f"{command.suite} has no fresh initial states; collect with --split train")
    if command.protocol != AUTO:
        raise UserError(f"--protocol is one of LIBERO's: it does not apply to suite '{command.suite}'.")
    split = "train" if command.split == AUTO else command.split
    stage = _stage(command, table)
    info, train, heldout = describe_stage(stage)
    known, in_unit = stage.image_size is not None, {*info.action_low, *info.action_high} <= {-1.0, 1.0}
    rate = command.dart_noise_rate
    if rate is None:
        rate = _DART_NOISE_RATE if known and in_unit else 0.0
    if rate and not in_unit:
        raise UserError(
            "pushes are for actions in [-1, 1] that begin with the hand's way: leave --dart-noise-rate out."
        )
    settings = _recorded(command, info) | {
        "dart_noise_rate": rate,
        "tasks": list(train),
        "split": split,
        "protocol": NATIVE.name,
        "env": {"name": kind_of("env", stage.env)} | _shown_by(stage.env),
        "imports": list(stage.imports),
        "control_hz": info.control_hz,
        "own_units": not (known and in_unit),
        "has_success": info.has_success,
    }
    states = heldout if split == "heldout" else train
    return _Source(info, states, _names(info), partial(hold_stage, stage), settings, split)


def _stage(command: CollectCommand, table: Suite) -> Stage:
    """Where it is recorded, with what the command says of a gymnasium env."""
    stage = stage_of(table, command.tasks, command.image_size, command.expert)
    said = {name: value for name in ("cameras", "instruction") if (value := getattr(command, name))}
    if not said:
        return stage
    if not isinstance(stage.env, GymnasiumConfig):
        raise UserError(f"--{next(iter(said))} is for gymnasium's envs: suite '{table.name}' says it itself.")
    return dataclasses.replace(stage, env=dataclasses.replace(stage.env, **said))


def _shown_by(env: EnvConfig) -> dict[str, Any]:
    """Its options, without how many there are and where they run."""
    return {name: value for name, value in dataclasses.asdict(env).items() if name not in ("num_envs", "processes")}


def _names(info: EnvInfo) -> _Names:
    """Those of a suite that shows images besides a state."""
    if info.backend == "metaworld":
        return _Names(HAND_NAMES, HAND_ACTION_NAMES, "sawyer")
    if info.suite in ALOHA_SUITES:
        return _Names(ALOHA_NAMES, ALOHA_NAMES, "aloha")
    like_libero = (info.proprio_dim, info.action_dim) == (len(PROPRIO_NAMES), len(ACTION_NAMES))
    if like_libero and info.backend == "maniskill":
        return _Names()
    state, action = (
        tuple(f"{name}_{k}" for k in range(count))
        for name, count in (("state", info.proprio_dim), ("action", info.action_dim))
    )
    return _Names(state, action, "unknown")


def _size(info: EnvInfo) -> int | str:
    """Of the images, in pixels: one number of squares."""
    height, width = info.image_shape
    return height if height == width else f"{height} x {width}"


def _is_libero(command: CollectCommand) -> bool:
    return command.suite in LIBERO_SUITES


def _split(command: CollectCommand) -> str:
    """Where the initial states come from."""
    if command.split != AUTO:
        return command.split
    return "train" if _is_libero(command) else "fresh"


def _protocol(command: CollectCommand) -> Protocol:
    if command.protocol != AUTO:
        return protocol(command.protocol)
    return LIBERO if _is_libero(command) else NATIVE


def _tasks(command: CollectCommand) -> list[SuiteTask]:
    refuse_twice(command.tasks, "task")
    split = _split(command)
    if _is_libero(command):
        if split == "fresh":
            raise UserError("LIBERO has no fresh initial states; collect with --split train")
        official, _ = judge(
            load_tasks(command.suite, command.tasks, command.physics_version), LastingConsole(stderr=True)
        )
        if split == "train":
            require_train_states(official)
        return official
    names = suites() if command.suite == ALL_SUITES else (command.suite,)
    if command.suite == "libero":
        raise UserError("libero is several suites, name one: collect libero_spatial, or collect libero --suite spatial")
    if not set(names) <= set(suites()):
        known = [ALL_SUITES, *suites(), *LIBERO_SUITES]
        raise UserError(f"unknown suite '{command.suite}'.{suggest(command.suite, known)}")
    tasks = {
        task.name.partition("/")[2]: task for name in names for task in load_tasks(name, era=command.physics_version)
    }
    for name in command.tasks:
        if name not in tasks:
            raise unknown_task(command.suite, name, tasks)
    chosen = [task for name, task in tasks.items() if not command.tasks or name in command.tasks]
    if split != "fresh":
        return chosen
    return [with_fresh_states(task, command.episodes_per_task, command.seed) for task in chosen]


def _describe(tasks: Sequence[SuiteTask], command: CollectCommand) -> EnvInfo:
    announce_compilation()
    with open_bench(tasks, _env_config(command), _protocol(command), command.image_size or DRAWN_SIZE) as bench:
        return bench.env.info


def _bench(command: CollectCommand) -> Bench:
    """What a worker process runs on."""
    size = command.image_size or DRAWN_SIZE
    return hold_bench(open_bench(_tasks(command), _env_config(command), _protocol(command), size))


def _env_config(command: CollectCommand) -> MujocoConfig:
    return MujocoConfig(render_quality=command.render_quality, physics_version=command.physics_version)


def _attempt(build: Callable[[], Bench], job: Job, attempts: Sequence[Attempt], workers: int, console: Console) -> None:
    kept, failed = writer.stored(job.partial)
    done = kept if job.keep_failures else kept | failed.keys()
    open_attempts = [attempt for attempt in attempts if attempt.key not in done]
    if len(open_attempts) < len(attempts):
        console.print(f"continuing: {len(attempts) - len(open_attempts)} of {len(attempts)} attempts are done")
    if not open_attempts:
        return
    started, frames, failures = time.monotonic(), 0, len(failed)
    with (
        ProgressBar(console, "collect") as bar,
        closing(collect.run(build, job, open_attempts, min(workers, len(open_attempts)))) as results,
    ):
        line = bar.add_task("", total=len(attempts), completed=len(attempts) - len(open_attempts), note="")
        for _, reason, count in results:
            frames += count
            failures += bool(reason)
            pace = frames / (time.monotonic() - started)
            bar.update(line, advance=1, note=f"{failures} failed, {pace:.0f} frames/s")


def _settings(command: CollectCommand, tasks: Sequence[SuiteTask], info: EnvInfo) -> dict[str, Any]:
    stand_ins, bundles = stand_in_files(tasks), bundles_digest(tasks)
    return {
        **({"stand_in_files": stand_ins} if stand_ins else {}),
        **({"bundles": bundles} if bundles else {}),
        **_recorded(command, info),
        "tasks": [task.name for task in tasks],
        "split": _split(command),
        "protocol": _protocol(command).name,
        "era": physics_version(tasks),
        "render_quality": pick_render_quality(command.render_quality, tasks),
    }


def _recorded(command: CollectCommand, info: EnvInfo) -> dict[str, Any]:
    """Settings that every suite has."""
    return {
        "suite": command.suite,
        "episodes_per_task": command.episodes_per_task,
        "dart_noise_rate": _DART_NOISE_RATE if command.dart_noise_rate is None else command.dart_noise_rate,
        "seed": command.seed,
        "image_size": _size(info),
        "cameras": list(info.cameras),
        "simulator": info.simulator,
        "renderer": info.renderer,
        **({} if command.expert == SCRIPTED else {"expert": command.expert}),
        **({} if command.keep == "successes" else {"keep": command.keep}),
    }


def _run_info(
    settings: dict[str, Any], rows: list[dict[str, Any]], failed: dict[int, str], line: str
) -> dict[str, Any]:
    return {
        "expert": SCRIPTED,
        **settings,
        "command": line,
        "version": __version__,
        "label": "action is the expert's own command; executed_action, where it differs, is a push off course",
        "results": rows,
        "failures": [failed[key] for key in sorted(failed)],
    }


def _video_folder(command: CollectCommand) -> Path | None:
    if not command.video:
        return None
    folder = command.out.with_name(command.out.name + "_videos")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _report(rows: list[dict[str, Any]], failed: dict[int, str], console: Console, *, has_success: bool) -> None:
    if not has_success:
        console.print("the tasks report no success: every episode that ran to its end is kept", soft_wrap=True)
    table = Table("task", "success" if has_success else "ran to its end", "rate")
    for row in rows:
        rate = row["successes"] / row["attempts"]
        mark = "" if rate >= EXPECTED_SUCCESS else f"  (below {EXPECTED_SUCCESS:.0%})"
        table.add_row(row["task"], f"{row['successes']}/{row['attempts']}", f"{rate:.0%}{mark}")
    console.print(table)
    for key in sorted(failed):
        console.print(f"failed: {failed[key]}", soft_wrap=True)
