"""Places that results go to, tried before the work and not after it, and folders that are written all or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from embodied_rl.errors import UserError

_BESIDE = ".12345678.old"
"""What the names of temporary files beside an output add to it, at most."""


def folder_bytes(root: Path) -> int:
    """Size of all files in a folder; links count nothing."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def try_output(option: str, out: Path) -> None:
    """Make the folder that is to hold `out`; UserError unless `out` and files beside it can be written."""
    if out.name in ("", ".."):
        raise UserError(f"{option} '{out}' has no name of its own: give a folder that does not exist yet")
    trial = out.with_name(f".{out.name}{_BESIDE}{os.getpid()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        trial.mkdir()
        trial.rmdir()
    except (OSError, ValueError) as error:
        shown = f"{_short(out)!r} cannot be written ({_reason(error)})"
        raise UserError(f"{option} {shown}: choose another place") from error


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


def replace_text(path: Path, text: str) -> None:
    """Write a file whole, or leave what was there."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


File = bytes | Callable[[Path], None]
"""A file's content, or what writes it to a path: large tensors need no second copy in memory then."""


def replace_folder(folder: Path, files: Mapping[str, File]) -> None:
    """Write `files`, in their order, beside `folder`, flush them to disk, then swap the folders by renaming.

    Args:
        files: at least one, by its path inside; what writes one finds those before it already there.
    """
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        mode = 0
        for name, content in files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            mode = path.stat().st_mode & 0o777
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                content(path)
                path.chmod(mode)  # safetensors makes its files private, whatever the umask allows
            _sync(path)
        staging.chmod(mode | mode >> 2 & 0o111)  # mkdtemp's is private too; whoever may read may also enter
        retired = None
        if folder.exists():
            retired = folder.parent / f"{staging.name}.old"
            folder.rename(retired)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync(folder.parent)
    if retired is not None:
        shutil.rmtree(retired)


def _sync(path: Path) -> None:
    """Make a file's content, or renames in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
