"""The folder of an installation: one writer at a time, a full disk in one line, and what is thrown away."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from embodied_rl.errors import UserError

NEEDED_GB = 5.0
"""Free disk space at the start: environment 1.5, downloads and assets 1, scenes in work 0.2 each, exported tasks 1."""
WORK = "work"
"""Folder of what is needed only while installing."""
TRASH = "work-trash"
"""What was WORK, on its way out."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_space(root: Path) -> None:
    """UserError unless the disk of `root` has room for an installation."""
    free = shutil.disk_usage(root).free / 1e9
    if free < NEEDED_GB:
        raise UserError(f"{root} has {free:.1f} GB free, installing needs {NEEDED_GB:.0f} GB; make room")


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """A disk that fills up is one line. Files are written whole or not at all, so what is there can be used."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise UserError(
            f"the disk of {root} is full: installing needs {NEEDED_GB:.0f} GB; make room and run the command again, "
            "it continues"
        ) from None


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Keep others from writing or deleting under `root`; the lock ends with the process."""
    root.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":
        yield
        return
    import fcntl

    with open(root / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another installation is working in {root}; wait for it to end") from None
        yield


def discard_work(root: Path) -> None:
    """Delete WORK. A half-deleted one never counts as one that can be continued: it has another name by then."""
    empty_trash(root)
    if (root / WORK).exists():
        os.replace(root / WORK, root / TRASH)
        empty_trash(root)


def empty_trash(root: Path) -> None:
    """Delete what an interrupted `discard_work` left."""
    shutil.rmtree(root / TRASH, ignore_errors=True)
