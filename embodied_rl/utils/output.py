"""Output paths, tried before the work and not after it."""

from __future__ import annotations

import os
from pathlib import Path

from embodied_rl.errors import UserError

_BESIDE = ".12345678.old"
"""What the names of temporary files beside an output add to it, at most."""


def folder_bytes(root: Path) -> int:
    """Size of all files in a folder; links count nothing."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def try_output(out: Path, option: str = "--out") -> None:
    """Make the folder that is to hold `out`; UserError unless `out` and files beside it can be written."""
    if out.name in ("", ".."):
        raise UserError(f"{option} '{out}' has no name of its own: give a folder that does not exist yet")
    trial = out.with_name(f".{out.name}{_BESIDE}{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        trial.mkdir()
        trial.rmdir()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        shown = str(out) if len(str(out)) <= 200 else f"{str(out)[:197]}..."
        raise UserError(f"{option} {shown!r} cannot be written ({reason}): choose another place") from error
