"""`embodied-rl bench NAME [--json FILE]`: measure speed. Each bench is a module of `embodied_rl.benchmarks`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from embodied_rl.cli.parse import parse
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.output import try_file

# Each has `run(json_path: Path | None, quick: bool) -> int | None`, which prints a table, writes the same figures and
# may return an exit code; some also take the options that only they have.
BENCHES = (
    "sim",
    "loop",
    "libero",
    "policy",
    "pipeline",
    "vla",
    "draw",
    "view-learning",
    "few-episodes",
    "gpu",
    "backends",
    "ranks",
)
_OWNERS = {
    "assets": ("libero",),
    "demos": ("few-episodes",),
    "environment": ("libero",),
    "episodes": ("few-episodes",),
    "only": ("pipeline", "few-episodes", "gpu", "backends"),
    "preset": ("vla",),
    "seeds": ("few-episodes",),
    "suites": ("draw",),
}


@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Measure speed: prints a table; --json also writes its `rows` and a flat object `ratios`.

    sim: steps a second of the simulator against gymnasium's vector environments.
    loop: decisions a second of the whole training loop, and where the time goes.
    libero: our engine on exported LIBERO tasks against the official stack, which it installs beside them (1.4 GB).
    policy: what batching saves over transformers' generate, and a shared prefix over repeated ones.
    pipeline: the pipelined scheduler against serial and two-stage lockstep, with timed waits and for real.
    vla: an OpenVLA of published size with random weights, on a GPU: time to act and to learn, and memory as planned.
    draw: observations a second of the ray caster and of EGL, for one thread and for all; with --suites, CPU time of
    fast and of plain OpenGL frames of LIBERO's tasks, and how far they are from the official ones.
    view-learning: rl_games, rsl_rl and skrl learn a tabletop task from its state, three seeds each (up to 90 min).
    few-episodes: ways to learn from 60 episodes, on a small policy that reads the state: success by seed, a person's
    help and a detector of failures included (half a minute a run on an idle core); goes on with the same --json.
    gpu: act, update, memory, drawing, and serial against pipelined with a small and a large policy; at most 9 minutes.
    backends: env-steps and images a second of every simulator that is installed.
    ranks: the training loop in two ranks against one process with two threads (about 6 min on two idle cores).
    """

    name: Annotated[str, tyro.conf.Positional]
    """sim, loop, libero, policy, pipeline, vla, draw, view-learning, few-episodes, gpu, backends or ranks."""
    json: Path | None = None
    """File for the figures."""
    quick: bool = False
    """A few seconds instead of minutes: to see that it runs, not to quote."""
    assets: Path | None = None
    """libero: checkout of LIBERO's repository or its assets folder; default: where the tasks were exported from."""
    environment: Path | None = None
    """libero: folder of the official packages, made where it is new; default: in the cache, beside the tasks."""
    only: str | None = None
    """Some of the parts, separated by commas. gpu: act, update, render, nano, loaded. backends: the simulators.
    pipeline: one of timed, stages that wait (18 min, few cores needed), and real, training (22 min, on a machine that
    does nothing else). few-episodes: none, more, filter, bon, steer, shuffled, people, people_demo, people_steer,
    offline, advantage, advantage_shuffled, detector."""
    seeds: int | None = None
    """few-episodes: how many (None: 8)."""
    demos: int | None = None
    """few-episodes: demonstrations a task to begin from (None: 10)."""
    episodes: int | None = None
    """few-episodes: episodes to learn from (None: 60)."""
    suites: tuple[str, ...] | None = None
    """draw: suites of LIBERO, or all: fast frames against official ones (20 min for all); goes on where it was stopped
    when it is given the same --json."""
    preset: str | None = None
    """vla: nano, tiny or 7b (None: 7b, which needs a GPU; with --quick nano)."""


def main(argv: list[str]) -> int:
    """Run one bench."""
    command = parse(BenchCommand, argv, "bench")
    if command.name not in BENCHES:
        raise UserError(f"unknown bench '{command.name}'.{suggest(command.name, BENCHES)}")
    if command.json:
        try_file("--json", command.json)
    given = {name: value for name in _OWNERS if (value := getattr(command, name)) is not None}
    for name in given:
        if command.name not in _OWNERS[name]:
            raise UserError(f"--{name} belongs to bench {' and '.join(_OWNERS[name])} only.")
    if command.name == "pipeline" and command.only not in (None, "timed", "real"):
        raise UserError(f"--only: bench pipeline has the parts timed and real, got '{command.only}'.")
    if command.name == "pipeline" and command.only and command.quick:
        raise UserError("--quick has a timed part only: leave --only out.")
    if command.preset and command.quick:
        raise UserError("--quick measures the nano preset: leave --preset out.")
    run = importlib.import_module(f"embodied_rl.benchmarks.{command.name.replace('-', '_')}").run
    return run(command.json, command.quick, **given) or 0
