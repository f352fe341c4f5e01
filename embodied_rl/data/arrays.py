"""Arrays beside a data set or an episode, in a file that is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from embodied_rl.errors import UserError
from embodied_rl.types import Array


def write_arrays(path: Path, arrays: Mapping[str, Array], about: Mapping[str, str] | None = None) -> None:
    """Write named arrays, and what is to be known of them as words; what was there gives way."""
    part = path.with_name(path.name + ".part")
    save_file(dict(arrays), part, dict(about or {}))
    os.replace(part, path)


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays in a file; UserError where there is none, or a damaged one."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is missing or damaged: restore the folder, or begin a new run") from error


def read_about(path: Path) -> dict[str, str]:
    """What is known of the arrays in a file; empty where there is none, or a damaged one."""
    try:
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError):
        return {}
