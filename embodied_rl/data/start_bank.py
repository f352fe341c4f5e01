"""States of demonstrations beside them in their data set: where training may begin (`--rollout.start-bank`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.types import Array

FILE = "start_bank.npz"
"""In the data set's folder: by task, float64 [S, D], states of the simulator in the order of the episodes."""
EVERY = 10
"""Control steps between two states of a demonstration, the first of which is where it began."""
_SUFFIX = ".states.npz"


def add(stem: Path, task: str, states: Array) -> None:
    """Store the states of one episode of `task`, float64 [n, D]; stem: of the episode's other files."""
    part = stem.with_suffix(".states.part")
    _write(part, {task: states})
    os.replace(part, stem.with_suffix(_SUFFIX))


def join(episodes: Path, root: Path) -> None:
    """Write the bank of all whole episodes in the folder `episodes` into the data set `root`, if any has states."""
    by_task: dict[str, list[Array]] = {}
    for whole in sorted(episodes.glob("*.parquet")):
        path = whole.with_suffix(_SUFFIX)
        if not path.is_file():
            continue
        with np.load(path) as arrays:
            for task in arrays.files:
                by_task.setdefault(task, []).append(arrays[task])
    if by_task:
        _write(root / FILE, {task: np.concatenate(parts) for task, parts in by_task.items()})


def _write(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
