"""`embodied-rl bench pipeline`: the pipelined scheduler against the serial one and against two-stage lockstep.

First really, with the small OpenVLA on the tabletop (`pipeline_real`). Then with stages that only wait, as long as
published set-ups take (`pipeline_timed`), which shows how much of what the hardware allows a scheduler makes use of.

serial: all worlds step, then the policy acts, and the update follows the rollout. lockstep: the worlds in two halves,
one simulates while the policy acts for the other, as the main peer pipelines; the update follows the rollout. stream
and async: the pipelined scheduler on-policy and with stale rows. Worlds are refilled at once in all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.benchmarks import pipeline_real
from embodied_rl.benchmarks.pipeline_timed import HORIZON, PROFILES, Devices, Profile, TimedEnv, TimedLearner
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.learner.off_policy import stale_rows
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.config import PipelinedConfig, SerialConfig
from embodied_rl.scheduler.make import make_profiler, make_scheduler

GROUP_SIZE, BATCH, MICROBATCH = 8, 4, 32
"""Episodes of a group; of an iteration, for every env; rows of a micro-batch."""
MODES = ("serial", "lockstep", "stream", "async")
WARM_UP, MEASURED = 1, 3
SECONDS = 24.0
"""An iteration of the serial scheduler takes about this long, whatever the profile: so much that the few tenths of a
millisecond that waking a thread takes do not count."""


def pipeline_cells(row: Mapping[str, Any]) -> list[str]:
    """Env groups, groups ahead, micro-batch, time of a decision, and shares of the two bounds."""
    shares = [f"{row[name]:.1%}" for name in ("of_bound", "of_own_bound")]
    counts = [str(row["stages"]), str(row["ahead"] or ""), str(row["microbatch"])]
    return [*counts, f"{row['ms_per_decision']:.2f}", *shares]


def play(mode: str, profile: Profile, speed: float, groups: int, measured: int) -> dict[str, Any]:
    """Seconds (of the real set-up) and rows of `measured` iterations after the warm-up, in the middle of a run."""
    pipelined = {"stream": profile.stream, "async": profile.stale}.get(mode, PipelinedConfig(env_groups=2))
    config = SerialConfig() if mode == "serial" else pipelined
    microbatch, lockstep = profile.microbatches.get(mode, MICROBATCH), mode == "lockstep"
    devices = Devices(speed)
    algorithm = make_algorithm(GRPOConfig(group_size=GROUP_SIZE, success_rate_range=None, max_oversampling=1.0))
    learner = TimedLearner(profile, devices, algorithm, microbatch, streams=not lockstep)
    scheduler = make_scheduler(
        config,
        TimedEnv(profile, devices, profile.cores if mode in ("serial", "lockstep") else 1),
        learner,
        EpisodeSampler(0, {"wait": range(64)}, GROUP_SIZE),
        make_profiler(config),
        Callbacks(),
        groups=groups,
        workers=1 if lockstep else profile.cores or 1,
    )
    rows, stale, began, ended = 0, 0, 0.0, 0.0
    with closing(scheduler):
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
    ahead = pipelined.lookahead(profile.num_envs, groups, GROUP_SIZE, streams=True).groups
    return {
        "profile": profile.name,
        "mode": mode,
        "stages": 1 if mode == "serial" else pipelined.env_groups,
        "ahead": ahead or 0,
        "microbatch": microbatch,
        "seconds": (ended - began) * speed,
        "rows": rows,
        "stale_rows": stale,
    }


def measure(profile: Profile, groups: int, measured: int, seconds: float) -> list[dict[str, Any]]:
    """One row a scheduler, with the ratio to the time of the busiest device.

    of_bound: without what a schedule does beside the on-policy work (evaluate stale rows again); of_own_bound: with
    it.
    """
    expected = profile.serial_seconds(groups * GROUP_SIZE * 0.7 * HORIZON)
    found = []
    for mode in MODES:
        row = play(mode, profile, expected / seconds, groups, measured)
        row["bound_seconds"] = profile.bound_seconds(row["rows"])
        row["of_bound"] = row["bound_seconds"] / row["seconds"]
        row["of_own_bound"] = profile.bound_seconds(row["rows"], row["stale_rows"]) / row["seconds"]
        row["ms_per_decision"] = 1e3 * row["seconds"] / row["rows"]
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
    for name in ("env groups", "ahead", "micro-batch", "ms/decision", "of the bound", "of its own"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["profile"], row["mode"], *pipeline_cells(row))
    return table


def run(json_path: Path | None, quick: bool = False, only: Literal["timed", "real"] | None = None) -> None:
    """Print the tables; write `rows`, `real`, flat `ratios`, the profiles and the machine to `json_path`.

    quick: one profile with eight worlds, one short iteration, and no real run; the figures are then only a smoke test.
    only: one of the parts; the file then says that it is 'pipeline timed' or 'pipeline real'. It is there from
    the first real turn on, with the turns so far.
    """
    console = Console()
    machine = describe_machine(("torch", "mujoco", "numpy", "numba"))
    profiles = (replace(PROFILES[0], num_envs=8),) if quick else () if only == "real" else PROFILES
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
        groups = BATCH * profile.num_envs // GROUP_SIZE
        found = measure(profile, 1, 1, 0.5) if quick else measure(profile, groups, MEASURED, SECONDS)
        rows += found
        console.print(_table(found))
    for name, value in save(real).items():
        console.print(f"  {name:<40}{value:.3f}", highlight=False)
    console.print(machine_line(machine))
