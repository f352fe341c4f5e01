"""What every bench writes: the machine that it ran on, and one JSON file with `rows` and flat `ratios`."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import scipy.linalg.cython_blas  # noqa: F401 - loads the OpenBLAS that numba's products go through
import torch
from threadpoolctl import threadpool_info

from embodied_rl.utils.machine import cpu_count, cpu_name


def describe_machine(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, GPU, cores, load (of the last minute, before the bench), system and versions of `packages`.

    blas_kernels: the instruction sets that OpenBLAS chose its kernels for, or was told to (OPENBLAS_CORETYPE).
    """
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    kernels = {str(library["architecture"]) for library in threadpool_info() if "architecture" in library}
    return {
        "cpu": cpu_name(),
        "cores": cpu_count(),
        **gpu,
        "load_before": round(os.getloadavg()[0], 2),
        "blas_kernels": "/".join(sorted(kernels)) or "no OpenBLAS",
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def machine_line(machine: Mapping[str, Any]) -> str:
    """The machine in a line, for a table's foot."""
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    return f"{machine['cpu']}, {machine['cores']} cores{gpu}, load {machine['load_before']} before the start"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table, its first column to the left, the others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def cell(value: Any) -> str:
    """A number with about four digits, an empty cell for None."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_json(
    path: Path,
    bench: str,
    quick: bool,
    machine: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    ratios: Mapping[str, float],
    **more: Any,
) -> None:
    """Write a bench's figures. more: whatever else a reader needs to understand or repeat them."""
    command = shlex.join(["embodied-rl", *sys.argv[1:]])
    head = {"bench": bench, "command": command, "quick": quick, "machine": dict(machine)}
    result = head | more | {"rows": list(rows), "ratios": dict(ratios)}
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
