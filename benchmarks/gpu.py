"""`embodied-rl bench gpu`: what a GPU does for this project, in one command, and where it idles.

Acting, learning and their memory against the plan (`gpu_policy`), drawing (`gpu_render`), whether pictures that are
still in the GPU's queue are waited for (`gpu_pictures`), and the training loop under serial and pipelined schedulers
with a small and a large policy (`gpu_schedule`). Without a GPU everything runs on the CPU, with smaller networks.
Each part is a process of its own (`parts`); one that fails is named, in the file too, and makes the command fail in
the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks.backends_measure import compile_simulator
from embodied_rl.benchmarks.gpu_schedule import ratios_of as schedule_ratios
from embodied_rl.benchmarks.parts import Part, Row, choose, patient, run_parts
from embodied_rl.benchmarks.report import cell, describe_machine, machine_line, write_json
from embodied_rl.errors import UserError
from embodied_rl.sim.warp import install

# 9 minutes in all
PARTS = (Part("act", 50), Part("update", 50), Part("render", 40), Part("nano", 210), Part("loaded", 190))
IMAGES = Part("pictures", 90)
"""Only on a GPU, with MuJoCo Warp."""
MANISKILL = Part("maniskill", 120)
"""Only on a GPU, with ManiSkill."""
COMPILED = Part("compiled", 240)
"""Only where `only` names it, and on a GPU: CUDA graphs are slow to make."""
_ORDER = [part.name for part in (*PARTS, IMAGES, MANISKILL, COMPILED)]
_SIMULATE = {"render", "pictures", "nano", "compiled", "loaded"}
_TIMES = {"rows": "rows", "ms a row": "ms", "low": "low", "high": "high", "GPU busy": "gpu_busy", "kernels": "kernels"}
_MEMORY = {"planned, GiB": "planned_gib", "allocated": "allocated_gib", "reserved": "reserved_gib"}
TABLES: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
    ("act and update", ("act", "update"), {"part": "part", "network": "network"} | _TIMES | _MEMORY),
    (
        "observations",
        ("render",),
        {"renderer": "renderer", "pixels": "size", "at once": "at_once", "observations/s": "per_s", "CPU ms": "cpu_ms"},
    ),
    (
        "pictures",
        ("pictures",),
        {
            "scheduler": "scheduler",
            "decisions": "decisions",
            "saw stale pictures": "late",
            "others than serial": "other",
        },
    ),
    ("ManiSkill", ("maniskill",), {"worlds": "worlds", "images of each": "images", "control steps/s": "per_s"}),
    (
        "the training loop",
        ("nano", "compiled", "loaded"),
        {"policy": "part", "scheduler": "scheduler", "decisions/s": "decisions_per_s", "low": "low", "high": "high"}
        | {"GPU busy": "gpu_busy", "kernels a decision": "kernels", "rows of an act call": "act_rows"}
        | {"its ms": "act_ms", "its CPU ms": "act_cpu_ms", "learn, ms a decision": "learn", "simulate": "simulate"}
        | {"render": "render", "sim busy": "sim_busy", "act busy": "act_busy", "learner busy": "learner_busy"},
    ),
)
"""Tables of `bench gpu`: title, parts whose rows are in it, and the rows' keys by column."""


def ratios_of(rows: Sequence[Row]) -> dict[str, float]:
    """<part>.<network>.<rows>_ms of a row, .busy of the GPU and .planned_vs_allocated; draw.<renderer>_<size>; ...

    ... and each schedule against serial and lockstep.
    """
    ratios: dict[str, float] = {}
    for row in rows:
        if row["part"] in ("act", "update"):
            name = f"{row['part']}.{row['network']}.{row['rows']}"
            ratios[f"{name}_ms"] = row["ms"]
            if row["allocated_gib"]:
                ratios[f"{name}_busy"] = row["gpu_busy"]
                ratios[f"{name}_planned_vs_allocated"] = row["planned_gib"] / row["allocated_gib"]
        elif row["part"] == "render":
            ratios[f"draw.{row['renderer']}_{row['size']}_{row['at_once']}"] = row["per_s"]
    for part in ("nano", "compiled", "loaded"):
        ratios |= schedule_ratios(part, rows)
    return ratios


def _kept(path: Path | None, quick: bool, setup: Row, measured: set[str]) -> tuple[list[Row], Row]:
    """Rows and failures that a file of the same device has of parts that are not measured now."""
    if path is None or not path.exists() or not path.stat().st_size:
        return [], {}
    old = json.loads(path.read_text(encoding="utf-8"))
    if (old.get("bench"), old.get("quick"), old.get("setup")) != ("gpu", quick, setup):
        raise UserError(f"--json: {path} holds other figures, or another device's: name another file.")
    rows = [row for row in old["rows"] if row["part"] not in measured]
    return rows, {name: reason for name, reason in old["failures"].items() if name not in measured}


def run(json_path: Path | None, quick: bool = False, only: str | None = None) -> int:
    """Print the tables; write `rows`, `failures`, flat `ratios` and the machine to `json_path`, after each part.

    A file that is there already keeps the parts that are not measured now; UserError if it is of something else.

    Args:
        quick: few rows, one short iteration of two schedulers; the figures are then only a smoke test.
        only: parts, separated by commas; None for all but `COMPILED`.

    Returns:
        The exit code: 1 if a part failed.
    """
    console = Console()
    if torch.cuda.is_available():
        able = [*PARTS, *([IMAGES] if all(map(find_spec, install.PACKAGES)) else [])]
        able += [MANISKILL] if find_spec("mani_skill") else []
        parts = choose(only, able if only is None else (*able, COMPILED))
    else:
        parts = choose(only, patient(PARTS))
    machine = describe_machine(("torch", "mujoco", "numpy", "numba"))
    setup: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "cuda": torch.version.cuda or "none",
    }

    kept, kept_failures = _kept(json_path, quick, setup, {part.name for part in parts})

    def save(rows: Sequence[Row], failures: Row) -> None:
        if json_path is not None:
            found = sorted([*kept, *rows], key=lambda row: _ORDER.index(row["part"]))
            failed = kept_failures | dict(failures)
            write_json(json_path, "gpu", quick, machine, found, ratios_of(found), setup=setup, failures=failed)

    if {part.name for part in parts} & _SIMULATE:
        compile_simulator()
    rows, failures = run_parts("embodied_rl.benchmarks.gpu_parts", parts, quick, console, save)
    for title, names, columns in TABLES:
        if own := [row for row in rows if row["part"] in names]:
            table = Table(*columns, title=title)
            for row in own:
                table.add_row(*(cell(row.get(name)) for name in columns.values()))
            console.print(table)
    for name, value in ratios_of(rows).items():
        console.print(f"  {name:<40}{value:.4g}", highlight=False)
    for name, reason in failures.items():
        console.print(f"part {name} FAILED: {reason}", style="red", highlight=False, soft_wrap=True)
    console.print(machine_line(machine))
    return 1 if failures else 0
