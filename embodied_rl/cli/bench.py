"""`embodied-rl bench NAME [--json FILE]`: measure speed. Each bench is a module of `embodied_rl.benchmarks`."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from embodied_rl.cli.parse import parse
from embodied_rl.errors import UserError, suggest

# Each has `run(json_path: Path | None, quick: bool) -> None`, which prints a table and writes the same figures.
BENCHES = ("sim", "loop", "policy", "pipeline")


@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Measure speed: prints a table; --json also writes its `rows` and a flat object `ratios`.

    sim: steps a second of the simulator against gymnasium's vector environments.
    loop: decisions a second of the whole training loop, and where the time goes.
    policy: what batching saves over transformers' generate, and a shared prefix over repeated ones.
    pipeline: the pipelined scheduler against serial and two-stage lockstep, with timed waits and for real.
    """

    name: Annotated[str, tyro.conf.Positional]
    """sim, loop, policy or pipeline."""
    json: Path | None = None
    """File for the figures."""
    quick: bool = False
    """A few seconds instead of minutes: to see that it runs, not to quote."""


def main(argv: list[str]) -> int:
    """Run one bench."""
    command = parse(BenchCommand, argv, "bench")
    if command.name not in BENCHES:
        raise UserError(f"unknown bench '{command.name}'.{suggest(command.name, BENCHES)}")
    if command.json and not command.json.absolute().parent.is_dir():
        raise UserError(f"--json {command.json}: its folder does not exist.")
    importlib.import_module(f"embodied_rl.benchmarks.{command.name}").run(command.json, command.quick)
    return 0
