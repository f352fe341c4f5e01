"""`embodied-rl bench pipeline`: the pipelined scheduler against the serial one and against two-stage lockstep.

First with stages that only wait, as long as published set-ups take (`pipeline_profiles`), which shows how much of what
the hardware allows a scheduler makes use of; then really, with the small OpenVLA on the tabletop (`pipeline_real`).

serial: all worlds step, then the policy acts, and the update follows the rollout. lockstep: the worlds in two halves,
one simulates while the policy acts for the other, as the main peer pipelines; the update follows the rollout. stream
and async: the overlaps of `PipelinedScheduler`. Slots are refilled at once in all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from embodied_rl.autotune import simulate
from embodied_rl.autotune.search import Space, ladder, schedulers, search
from embodied_rl.autotune.simulate import Work
from embodied_rl.benchmarks import pipeline_real
from embodied_rl.benchmarks.pipeline_profiles import PROFILES
from embodied_rl.benchmarks.pipeline_timed import (
    HORIZON,
    MINIBATCH,
    Devices,
    Profile,
    TimedEnv,
    TimedLearner,
    TimedPolicy,
    length,
)
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.learner.off_policy import stale_rows
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.groups import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks, Scheduler
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.scheduler.pipeline.engine import EngineOptions, RolloutEngine
from embodied_rl.scheduler.pipeline.scheduler import PipelinedScheduler
from embodied_rl.scheduler.serial import SerialScheduler
from embodied_rl.utils.profiler import Profiler

GROUP_SIZE, BATCH = 8, 4
"""Episodes of a group; episodes of an iteration for every world."""
MICROBATCHES = (32, 16, 8)
WARM_UP, MEASURED = 1, 3
SECONDS = 24.0
"""An iteration of the serial scheduler takes about this long, whatever the profile: so much that the few tenths of a
millisecond that waking a thread takes do not count."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A scheduler of the comparison. lockstep: the peer's, with two halves."""

    name: str
    scheduler: SchedulerConfig
    microbatch: int
    lockstep: bool = False


def modes_of(profile: Profile) -> tuple[Mode, ...]:
    """serial, lockstep, and the best stages and micro-batch of stream and async, as `search` finds them."""
    found = [_tuned(profile, overlap) for overlap in ("on_policy", "async")]
    most = MICROBATCHES[0]
    return Mode("serial", SerialConfig(), most), Mode("lockstep", SerialConfig(), most, True), *found


def _tuned(profile: Profile, overlap: Literal["on_policy", "async"]) -> Mode:
    _, *pipelined = schedulers((overlap,), ladder(profile.worlds), 2 * profile.worlds // GROUP_SIZE)
    space = Space(
        placements={"": profile.costs}, schedulers=tuple(pipelined), worlds=(profile.worlds,), microbatches=MICROBATCHES
    )
    choice = search(space, work_of(profile)).choice
    return Mode("async" if overlap == "async" else "stream", choice.scheduler, choice.microbatch)


def work_of(profile: Profile) -> Work:
    """An iteration on a profile."""
    return Work(
        profile.worlds,
        BATCH * profile.worlds // GROUP_SIZE,
        GROUP_SIZE,
        length,
        MICROBATCHES[0],
        minibatch_groups=MINIBATCH,
    )


def scheduler_of(mode: Mode, profile: Profile, devices: Devices, learner: TimedLearner, groups: int) -> Scheduler:
    """A scheduler over waiting stages."""
    sampler = EpisodeSampler(0, {"wait": range(64)}, GROUP_SIZE)
    policy, config = TimedPolicy(profile, devices), mode.scheduler
    if isinstance(config, SerialConfig) and not mode.lockstep:
        env = TimedEnv(profile, devices, parallel=profile.cores)
        return SerialScheduler(Collector(env, policy, GroupQueue(sampler, groups=groups), Profiler()))
    pipelined = config if isinstance(config, PipelinedConfig) else PipelinedConfig(env_groups=2)
    env = TimedEnv(profile, devices, parallel=profile.cores if mode.lockstep else 1)
    ahead = pipelined.lookahead(profile.worlds, groups, GROUP_SIZE, streams=not mode.lockstep)
    stream = GroupQueue(sampler, groups=groups, success_rate_range=None, max_oversampling=1.0, lookahead=ahead)
    workers = 1 if mode.lockstep else profile.cores or 1
    stale = pipelined.mode == "async"
    engine = RolloutEngine(
        env,
        policy,
        stream,
        Profiler(concurrent=True),
        EngineOptions(env_groups=pipelined.num_env_groups(env.num_envs, cpu=False), workers=workers, in_turn=not stale),
    )
    return PipelinedScheduler(
        engine,
        learner.whole if mode.lockstep else learner,
        Callbacks(),
        load_weights=lambda: None,
        on_policy=not stale,
        correct=learner.correct if stale else None,
    )


def play(mode: Mode, profile: Profile, speed: float, groups: int, measured: int) -> dict[str, Any]:
    """Seconds (of the real set-up) and rows of `measured` iterations after the warm-up, in the middle of a run."""
    devices = Devices(speed)
    learner = TimedLearner(profile, devices, mode.microbatch)
    rows, stale, began, ended = 0, 0, 0.0, 0.0
    with closing(scheduler_of(mode, profile, devices, learner, groups)) as scheduler:
        last = WARM_UP + measured - 1
        for batch in scheduler.batches(0, last + 3):
            learner.update(batch)
            scheduler.publish(batch.version + 1)
            ended = time.perf_counter()
            if batch.version < WARM_UP:
                began = ended
                continue
            rows += len(batch)
            stale += len(stale_rows(batch))
            if batch.version == last:
                break
    config = mode.scheduler if isinstance(mode.scheduler, PipelinedConfig) else PipelinedConfig(env_groups=1)
    ahead = config.lookahead(profile.worlds, groups, GROUP_SIZE, streams=True).groups or 0
    return {
        "profile": profile.name,
        "mode": mode.name,
        "stages": 2 if mode.lockstep else config.env_groups,
        "ahead": ahead,
        "microbatch": mode.microbatch,
        "seconds": (ended - began) * speed,
        "rows": rows,
        "stale_rows": stale,
    }


def measure(
    profile: Profile, modes: Iterable[Mode], groups: int, measured: int, seconds: float
) -> list[dict[str, Any]]:
    """One row a mode, with the ratio to the bound of the busiest device and the time that `simulate` predicts.

    of_bound: to the bound without what a schedule does beside the on-policy work (stale rows evaluated again);
    of_own_bound: with it.
    """
    work = replace(work_of(profile), groups=groups)
    expected = profile.costs.total(profile.worlds, groups * GROUP_SIZE * 0.7 * HORIZON, 1)
    found = []
    for mode in modes:
        row = play(mode, profile, expected / seconds, groups, measured)
        predicted = simulate.play(
            profile.costs,
            replace(work, microbatch=mode.microbatch),
            mode.scheduler,
            warm_up=WARM_UP,
            measured=measured,
            lockstep=2 if mode.lockstep else 0,
        )
        row["bound_seconds"] = profile.costs.bound(profile.worlds, row["rows"], measured)
        row["of_bound"] = row["bound_seconds"] / row["seconds"]
        own = profile.costs.bound(profile.worlds, row["rows"], measured, row["stale_rows"])
        row["of_own_bound"] = own / row["seconds"]
        row["ms_per_decision"] = 1e3 * row["seconds"] / row["rows"]
        row["predicted_ms_per_decision"] = 1e3 * predicted.seconds_per_row
        found.append(row)
    return found


def ratios_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """<profile>.vs_serial, .vs_lockstep, .of_bound of the fastest overlap, and of each with its own bound."""
    ratios: dict[str, float] = {}
    for profile in dict.fromkeys(row["profile"] for row in rows):
        found = {row["mode"]: row for row in rows if row["profile"] == profile}
        slowness = {mode: row["ms_per_decision"] for mode, row in found.items()}
        fastest = min(("stream", "async"), key=slowness.__getitem__)
        for mode, name in ((fastest, profile), ("stream", f"{profile}.stream"), ("async", f"{profile}.async")):
            ratios[f"{name}.vs_serial"] = slowness["serial"] / slowness[mode]
            ratios[f"{name}.vs_lockstep"] = slowness["lockstep"] / slowness[mode]
            ratios[f"{name}.of_bound"] = found[mode]["of_bound"]
        ratios[f"{profile}.async.of_own_bound"] = found["async"]["of_own_bound"]
        ratios[f"{profile}.bound_vs_serial"] = 1 / found["serial"]["of_bound"]
    return ratios


def _real(console: Console, save: Callable[[Sequence[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    """The rows of the real part, each printed when it is there; `save` gets all whole turns after each."""
    rows: list[dict[str, Any]] = []
    for row in pipeline_real.measure_all(pipeline_real.real_config()):
        rows.append(row)
        console.print(
            f"turn {row['turn'] + 1}/{pipeline_real.TURNS}  {row['scheduler']:<9}{row['decisions_per_s']:7.1f} "
            f"decisions/s  {row['seconds']:5.1f} s, {row['cpu_seconds']:5.1f} s of CPU",
            highlight=False,
        )
        if len(rows) % len(pipeline_real.WAYS) == 0:
            save(rows)
    return rows


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("profile", "scheduler", title="stages that only wait")
    for name in ("stages", "ahead", "micro-batch", "ms/decision", "predicted", "of the bound", "of its own"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["profile"],
            row["mode"],
            str(row["stages"]),
            str(row["ahead"]),
            str(row["microbatch"]),
            f"{row['ms_per_decision']:.2f}",
            f"{row['predicted_ms_per_decision']:.2f}",
            f"{row['of_bound']:.1%}",
            f"{row['of_own_bound']:.1%}",
        )
    return table


def run(json_path: Path | None, quick: bool = False, only: Literal["timed", "real"] | None = None) -> None:
    """Print the tables; write `rows`, `real`, flat `ratios`, the profiles and the machine to `json_path`.

    quick: one profile with eight worlds, one short iteration, and no real run; the figures are then only a smoke test.
    only: one of the parts; the file then says that it is 'pipeline timed' or 'pipeline real'. It is there from
    the first real turn on, with the turns so far.
    """
    console = Console()
    machine = describe_machine(("torch", "mujoco", "numpy", "numba"))
    profiles = (replace(PROFILES[0], worlds=8),) if quick else () if only == "real" else PROFILES
    sources = {profile.name: profile.source for profile in profiles}
    rows: list[dict[str, Any]] = []

    def save(real: Sequence[dict[str, Any]]) -> dict[str, float]:
        ratios = ratios_of(rows) | (pipeline_real.ratios_of(real) if real else {})
        if json_path is not None:
            name = f"pipeline {only}" if only else "pipeline"
            more = {"sources": sources, "real": list(real), "real_turns": len(real) // len(pipeline_real.WAYS)}
            write_json(json_path, name, quick, machine, rows, ratios, **more)
        return ratios

    # first, since only this part needs the machine to itself
    real = [] if quick or only == "timed" else _real(console, save)
    for profile in profiles:
        groups = work_of(profile).groups
        found = measure(
            profile,
            modes_of(profile),
            groups // BATCH if quick else groups,
            1 if quick else MEASURED,
            0.5 if quick else SECONDS,
        )
        rows += found
        console.print(_table(found))
    for name, value in save(real).items():
        console.print(f"  {name:<40}{value:.3f}", highlight=False)
    console.print(machine_line(machine))
