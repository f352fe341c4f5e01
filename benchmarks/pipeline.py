"""`embodied-rl bench pipeline`: the pipelined scheduler against the serial one and against two-stage lockstep.

First with stages that only wait, as long as published set-ups take (`pipeline_profiles`), which shows how much of what
the hardware allows a scheduler makes use of; then really, with the small OpenVLA on the tabletop (`pipeline_real`).

serial: all worlds step, then the policy acts, and the update follows the rollout. lockstep: the worlds in two halves,
one simulates while the policy acts for the other, as the main peer pipelines; the update follows the rollout. stream
and async: the overlaps of `PipelinedScheduler`. Slots are refilled at once in all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks import pipeline_real
from embodied_rl.benchmarks.pipeline_profiles import PROFILES
from embodied_rl.benchmarks.pipeline_timed import Devices, Profile, TimedEnv, TimedLearner, TimedPolicy
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.rollout.collect import Collector
from embodied_rl.rollout.engine import RolloutEngine
from embodied_rl.rollout.groups import GroupStream
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.rollout.stages import StageClock
from embodied_rl.rollout.timeline import Timeline
from embodied_rl.scheduler.make import Scheduler
from embodied_rl.scheduler.pipelined import PipelinedScheduler
from embodied_rl.scheduler.serial import SerialScheduler

MODES = ("serial", "lockstep", "stream", "async")
GROUP_SIZE, HORIZON = 8, 20
WARM_UP, MEASURED, STALENESS = 1, 3, 1
SECONDS = 6.0
"""An iteration of the serial scheduler takes about this long, whatever the profile."""


def scheduler_of(
    mode: str, profile: Profile, devices: Devices, learner: TimedLearner, groups: int, stages: int
) -> Scheduler:
    """A scheduler over waiting stages."""
    sampler = EpisodeSampler(0, {"wait": range(64)}, GROUP_SIZE)
    policy = TimedPolicy(profile, devices)
    if mode == "serial":
        env = TimedEnv(profile, devices, HORIZON, parallel=profile.cores)
        return SerialScheduler(Collector(env, policy, sampler, StageClock(), groups=groups))
    lockstep = mode == "lockstep"
    env = TimedEnv(profile, devices, HORIZON, parallel=profile.cores if lockstep else 1)
    stream = GroupStream(
        sampler, groups=groups, keep=None, max_factor=1.0, max_staleness=STALENESS if mode == "async" else 0
    )
    engine = RolloutEngine(
        env, policy, stream, Timeline(), stages=2 if lockstep else stages,
        workers=1 if lockstep else profile.cores or 1,
    )  # fmt: skip
    return PipelinedScheduler(
        engine, install=lambda: None, poll=lambda: None, learn=learner.accumulate if mode == "stream" else None,
        ess=(lambda: 1.0) if mode == "async" else None,
    )  # fmt: skip


def play(mode: str, profile: Profile, speed: float, groups: int, stages: int, measured: int) -> dict[str, Any]:
    """Seconds (of the real set-up) and rows of `measured` iterations after the warm-up, in the middle of a run."""
    devices = Devices(speed)
    learner = TimedLearner(profile, devices)
    rows, began, ended = 0, 0.0, 0.0
    with closing(scheduler_of(mode, profile, devices, learner, groups, stages)) as scheduler:
        last = WARM_UP + measured - 1
        for batch in scheduler.batches(0, last + 2 + STALENESS):
            learner.update(batch)
            scheduler.publish(batch.version + 1)
            ended = time.perf_counter()
            if batch.version < WARM_UP:
                began = ended
                continue
            rows += len(batch)
            if batch.version == last:
                break
    return {"profile": profile.name, "mode": mode, "seconds": (ended - began) * speed, "rows": rows}


def measure(profile: Profile, modes: Iterable[str], groups: int, measured: int, seconds: float) -> list[dict[str, Any]]:
    """One row a mode, with the ratio to the bound of the busiest device."""
    expected = profile.total(groups * GROUP_SIZE * 0.7 * HORIZON, 1)
    stages = profile.worlds // 2 if profile.cores else 2
    found = []
    for mode in modes:
        row = play(mode, profile, expected / seconds, groups, stages, measured)
        row["bound_seconds"] = profile.bound(row["rows"], measured)
        row["of_bound"] = row["bound_seconds"] / row["seconds"]
        row["ms_per_decision"] = 1e3 * row["seconds"] / row["rows"]
        found.append(row)
    return found


def ratios_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """<profile>.vs_serial, .vs_lockstep, .of_bound of the fastest overlap (async), and the same of stream."""
    ratios: dict[str, float] = {}
    for profile in dict.fromkeys(row["profile"] for row in rows):
        speed = {row["mode"]: 1 / row["ms_per_decision"] for row in rows if row["profile"] == profile}
        bound = {row["mode"]: row["of_bound"] for row in rows if row["profile"] == profile}
        for mode, name in (("async", profile), ("stream", f"{profile}.stream")):
            ratios[f"{name}.vs_serial"] = speed[mode] / speed["serial"]
            ratios[f"{name}.vs_lockstep"] = speed[mode] / speed["lockstep"]
            ratios[f"{name}.of_bound"] = bound[mode]
        ratios[f"{profile}.bound_vs_serial"] = speed["serial"] ** -1 / (bound["serial"] / speed["serial"])
    return ratios


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("profile", "scheduler", title="stages that only wait")
    for name in ("ms/decision", "of the bound"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["profile"], row["mode"], f"{row['ms_per_decision']:.2f}", f"{row['of_bound']:.1%}")
    return table


def run(json_path: Path | None, quick: bool = False) -> None:
    """Print the tables; write `rows`, `real`, flat `ratios`, the profiles and the machine to `json_path`.

    quick: one profile, one short iteration, and no real run; the figures are then only a smoke test.
    """
    console = Console()
    machine = describe_machine(("torch", "mujoco", "numpy", "numba"))
    profiles = PROFILES[:1] if quick else PROFILES
    rows: list[dict[str, Any]] = []
    for profile in profiles:
        groups = 4 * profile.worlds // GROUP_SIZE
        found = measure(profile, MODES, groups // 4 if quick else groups, 1 if quick else MEASURED,
                        0.5 if quick else SECONDS)  # fmt: skip
        rows += found
        console.print(_table(found))
    ratios = ratios_of(rows)
    real = [] if quick else pipeline_real.measure_all()
    if real:
        ratios |= pipeline_real.ratios_of(real)
    for name, value in ratios.items():
        console.print(f"  {name:<40}{value:.3f}", highlight=False)
    console.print(machine_line(machine))
    if json_path is not None:
        sources = {profile.name: profile.source for profile in profiles}
        write_json(json_path, "pipeline", quick, machine, rows, ratios, sources=sources, real=real)
