"""The machine that this process runs on: its cores and its device."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from embodied_rl.errors import UserError


def cpu_count() -> int:
    """CPU cores that this process may use (a container may have fewer than the machine)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def pick_device(wanted: str) -> str:
    """'cpu' or 'cuda'; UserError if a GPU is asked for and there is none."""
    import torch

    if wanted not in ("auto", "cpu", "cuda"):
        raise UserError(f"device '{wanted}': choose auto, cpu or cuda.")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch sees no GPU here; use --device cpu, or install a CUDA build of torch.")
    return wanted
