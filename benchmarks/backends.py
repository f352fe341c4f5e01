"""`embodied-rl bench backends`: env-steps and pictures a second of every simulator that is installed, behind `VecEnv`.

Rows by backend, number of envs and picture size: physics alone in chunks of 8 steps, drawing alone, and both, with
every camera drawn after every control step. Tasks differ from backend to backend, so compare a backend with itself.
Each backend is measured in a process of its own (`parts`); one that is not installed is named, one that fails is
named and makes the command fail in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks.backends_measure import compile_simulator
from embodied_rl.benchmarks.backends_parts import PARTS, missing
from embodied_rl.benchmarks.parts import Row, choose, patient, run_parts
from embodied_rl.benchmarks.report import cell, describe_machine, machine_line, write_json

COLUMNS = {
    "backend": "part",
    "simulator": "simulator",
    "task": "task",
    "device": "device",
    "envs": "num_envs",
    "mode": "mode",
    "renderer": "renderer",
    "pixels": "size",
    "env-steps/s": "env_steps_per_s",
    "pictures/s": "frames_per_s",
    "CPU ms": "cpu_ms",
}
"""Columns of `bench backends`: the rows' keys by column."""


def ratios_of(rows: Sequence[Row]) -> dict[str, float]:
    """<backend>.<envs>.steps_per_s of physics alone; .<envs>_<size>.frames_per_s of drawing alone and of both."""
    ratios: dict[str, float] = {}
    for row in rows:
        name = f"{row['part']}.{row['num_envs']}"
        if row["mode"] == "physics":
            ratios[f"{name}.steps_per_s"] = row["env_steps_per_s"]
        else:
            ratios[f"{name}_{row['size']}.{row['mode']}_per_s"] = row["frames_per_s"]
    return ratios


def run(json_path: Path | None, quick: bool = False, only: str | None = None) -> int:
    """Print the table; write `rows`, `missing`, `failures`, flat `ratios` and the machine, after each backend.

    Args:
        quick: few envs, one size, briefly; the figures are then only a smoke test.
        only: backends, separated by commas; None for all.

    Returns:
        The exit code: 1 if a backend failed.
    """
    console = Console()
    chosen = choose(only, PARTS if torch.cuda.is_available() else patient(PARTS))
    absent = {part.name: reason for part in chosen if (reason := missing(part.name))}
    machine = describe_machine(("mujoco", "torch", "numpy", "numba"))

    def save(rows: Sequence[Row], failures: Row) -> None:
        if json_path is not None:
            more = {"missing": absent, "failures": dict(failures)}
            write_json(json_path, "backends", quick, machine, rows, ratios_of(rows), **more)

    there = [part for part in chosen if part.name not in absent]
    save([], {})
    compile_simulator()
    rows, failures = run_parts("embodied_rl.benchmarks.backends_parts", there, quick, console, save)
    table = Table(*COLUMNS, title="simulators, all envs together")
    for row in rows:
        table.add_row(*(cell(row[name] or None) for name in COLUMNS.values()))
    console.print(table)
    for name, reason in absent.items():
        console.print(f"  {name} not measured: {reason}", highlight=False)
    for name, reason in failures.items():
        console.print(f"{name} FAILED: {reason}", style="red", highlight=False, soft_wrap=True)
    console.print(machine_line(machine))
    return 1 if failures else 0
