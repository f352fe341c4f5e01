"""Serial against pipelined for `bench gpu`: the whole training loop on the tabletop with a small and a large policy.

`nano` is the shipped policy, in the loop of `bench pipeline --only real`; `compiled` the same with `--policy.compile`,
whose CUDA graphs take the launches off the processor. `loaded` is `gpu_policy`'s large network with
random weights, whose episodes therefore run to the horizon. Each way trains on its own from the same start: an
iteration that does not count (with the large network for the first way only), then those that do, then, but for the
lockstep loop, one under the profiler, which gives the GPU's busy share.

What tells the causes of a slow pipeline apart: rows and milliseconds of an act call (halves of a batch cost two calls),
the CPU time of the acting thread beside it (the rest is waiting: for the GPU, or for another thread's Python), busy
shares of the threads, and the GPU's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from embodied_rl.benchmarks.gpu_busy import gpu_busy
from embodied_rl.benchmarks.gpu_policy import ANY_RATIO, networks, open_network
from embodied_rl.benchmarks.pipeline_real import (
    RUN_UP,
    MakePolicy,
    Way,
    iterations,
    real_config,
    runs_ahead,
    shipped_policy,
)
from embodied_rl.config.policies import OpenVLAConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import PipelinedConfig, SerialConfig
from embodied_rl.utils.machine import pick_device

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.sim.mujoco.task import MujocoTask

SERIAL, LOCKSTEP = "serial", "lockstep"
WAYS = (
    Way(SERIAL, SerialConfig()),
    Way(LOCKSTEP, SerialConfig(), each_step=True),
    Way("stream, 1 group", PipelinedConfig(env_groups=1)),
    Way("stream, 2 groups", PipelinedConfig(env_groups=2)),
    Way("async, 1 group", PipelinedConfig(mode="async", env_groups=1)),
)
QUICK_WAYS = (WAYS[0], WAYS[3])
COMPILED_WAYS = (WAYS[0], WAYS[2])
NANO_EPISODES = 64
"""Of an iteration: twice the envs."""
QUICK_EPISODES = 2


def nano(quick: bool) -> Iterator[dict[str, Any]]:
    """The shipped policy."""
    config = real_config(quick)
    config = replace(config, rollout=RolloutConfig(episodes_per_iteration=QUICK_EPISODES if quick else NANO_EPISODES))
    if quick:
        yield from _measure(config, shipped_policy, QUICK_WAYS, 1, warm=())
    else:
        yield from _measure(config, shipped_policy, WAYS, 2, warm=WAYS)


def compiled(quick: bool) -> Iterator[dict[str, Any]]:
    """The shipped policy, which acts through CUDA graphs; only for a GPU."""
    config = real_config(quick)
    config = replace(config, rollout=RolloutConfig(episodes_per_iteration=QUICK_EPISODES if quick else NANO_EPISODES))
    assert isinstance(config.policy, OpenVLAConfig), "the recipe's policy"
    config = replace(config, policy=replace(config.policy, compile=True))
    ways = QUICK_WAYS if quick else COMPILED_WAYS
    # the first iteration of a way compiles, and the second may still meet new numbers of rows
    yield from _measure(config, shipped_policy, ways, 2, warm=ways, run_up=2)


def loaded(quick: bool) -> Iterator[dict[str, Any]]:
    """The large network; shorter iterations, for it is slow."""
    network = networks(pick_device("auto"))[1]
    config = real_config(quick)
    learner = replace(config.learner, microbatch_size=network.microbatch, ratio_tolerance=ANY_RATIO)
    episodes = QUICK_EPISODES if quick else config.env.num_envs
    config = replace(config, rollout=RolloutConfig(episodes_per_iteration=episodes), learner=learner)

    def make(config: TrainConfig, tasks: Sequence[MujocoTask]) -> AnyPolicy:
        return open_network(network, pick_device(config.device), sorted({task.instruction for task in tasks}))

    yield from _measure(config, make, QUICK_WAYS if quick else WAYS[:-1], 1, warm=() if quick else WAYS[:1])


def _measure(
    config: TrainConfig, make: MakePolicy, ways: Sequence[Way], measured: int, warm: Sequence[Way], run_up: int = 1
) -> Iterator[dict[str, Any]]:
    """warm: the ways with `run_up` iterations before it that do not count."""
    for way in ways:
        with closing(iterations(way, config, make)) as rows:
            for _ in range(max(RUN_UP - 1, run_up) if runs_ahead(way) else run_up * (way in warm)):
                next(rows)
            found = [next(rows) for _ in range(measured)]
            busy = None if way.each_step else gpu_busy(lambda rows=rows: next(rows))
        share = {"gpu_busy": None, "kernels": None} if busy is None else {"gpu_busy": busy.share}
        if busy is not None:
            share["kernels"] = busy.kernels / found[-1]["decisions"]
        yield row_of(way.name, found) | share


def row_of(scheduler: str, iterations: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of the table: speeds; act calls; ms of a decision by stage; busy shares, None for a serial loop."""
    speeds = [row["decisions_per_s"] for row in iterations]
    decisions = sum(row["decisions"] for row in iterations)
    calls = sum(row["calls"]["act"] for row in iterations)

    def total(name: str) -> float:
        return sum(row["times"].get(name, 0.0) for row in iterations)

    def stage(*names: str) -> float:
        return 1e3 * sum(total(f"time/{name}") for name in names) / decisions

    pipelined = "busy/act" in iterations[0]["times"]
    return {
        "scheduler": scheduler,
        "decisions_per_s": statistics.median(speeds),
        "low": min(speeds),
        "high": max(speeds),
        "act_rows": decisions / calls,
        "act_ms": 1e3 * total("time/act") / calls,
        # a serial loop's profiler counts the CPU time of all threads
        "act_cpu_ms": 1e3 * total("cpu/act") / calls,
        "act": stage("act"),
        "simulate": stage("simulate"),
        "render": stage("render"),
        "learn": stage("learn", "update", "evaluate"),
        **{
            f"{role}_busy": total(f"busy/{role}") / len(iterations) if pipelined else None
            for role in ("sim", "act", "learner")
        },
    }


def ratios_of(part: str, rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """<part>.<scheduler>.vs_serial and .vs_lockstep of every pipelined way."""
    speed = {row["scheduler"]: row["decisions_per_s"] for row in rows if row["part"] == part}
    return {
        f"{part}.{way.replace(', ', '_').replace(' ', '_')}.vs_{other}": speed[way] / speed[other]
        for way in speed
        if way not in (SERIAL, LOCKSTEP)
        for other in (SERIAL, LOCKSTEP)
        if other in speed
    }
