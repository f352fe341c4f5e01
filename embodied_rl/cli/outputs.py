"""Tries the places that results go to, before the work whose results they are."""

from __future__ import annotations

import tempfile
from pathlib import Path

from embodied_rl.errors import UserError


def try_file(option: str, path: Path) -> None:
    """Raise UserError unless the file `path` can be written; it is left as it is, and not made.

    option: as the user typed it, such as '--json'.
    """
    try:
        new = not path.exists()
        with open(path, "ab"):
            pass
        if new:
            path.unlink()
    except (OSError, ValueError) as error:
        raise UserError(f"{option}: cannot write {_short(path)}: {_reason(error)}; name another file.") from error


def try_folder(option: str, path: Path) -> None:
    """Raise UserError unless files can be written into the folder `path`; if it is new, it is not there afterwards."""
    made: list[Path] = []
    try:
        for folder in reversed((path, *path.parents)):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        with tempfile.TemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write into {_short(path)}: {_reason(error)}; choose another {option}.") from error
    finally:
        for folder in reversed(made):
            folder.rmdir()


def _reason(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _short(path: Path) -> str:
    """The path, or both ends of a very long one."""
    text = str(path)
    return text if len(text) <= 400 else f"{text[:100]}...{text[-100:]}"
