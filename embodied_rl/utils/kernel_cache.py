"""Where numba keeps compiled kernels: beside the sources, in the home folder, or in /tmp if neither can be written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "sim" / "mujoco"


def folder_of_cache(environ: MutableMapping[str, str] = os.environ) -> tuple[Path, bool]:
    """The folder that numba writes to, and whether it is beside the sources.

    Without a folder that can be written numba fails at import.
    """
    if environ.get("NUMBA_CACHE_DIR"):
        return Path(environ["NUMBA_CACHE_DIR"]), False
    if _can_write(SOURCES / "__pycache__"):
        return SOURCES / "__pycache__", True
    base = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "numba", False


def use_writable_cache(environ: MutableMapping[str, str] = os.environ) -> str | None:
    """Set NUMBA_CACHE_DIR, before numba is imported, if it could write nowhere else.

    Returns:
        A line that says so, or None where nothing had to be done.
    """
    if _can_write(folder_of_cache(environ)[0]):
        return None
    folder = Path(tempfile.gettempdir()) / f"embodied-rl-kernels-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        own = found.st_uid == os.getuid() and not found.st_mode & 0o022 and folder.is_dir() and not folder.is_symlink()
    except OSError:
        own = False
    if not own:  # numba unpickles what it finds: never from a folder that others can write
        folder = Path(tempfile.mkdtemp(prefix="embodied-rl-kernels-"))
    environ["NUMBA_CACHE_DIR"] = str(folder)
    return f"compiled kernels are kept in {folder}: neither the installation nor the home folder can be written"


def _can_write(folder: Path) -> bool:
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
