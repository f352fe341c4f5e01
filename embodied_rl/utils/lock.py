"""One process at a time: an advisory lock on a file, which ends with its process, however that ends.

Whoever comes while the holder works is refused; once the holder says that it is ending, they wait.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from embodied_rl.errors import UserError

LOCK = ".lock"
"""Name of the lock in the folder of a run or of an evaluation."""
_ENDING = "ending"
_held: list[Path] = []


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` in the `with` block; it is gone afterwards.

    A file that a killed process left behind doesn't block: the kernel's lock died with the process.

    Args:
        path: the lock file; its folder exists.
        what: what is being done under the lock, for the message to others ("training in runs/a").

    Raises:
        UserError: another process holds the lock and works on, or the file can't be written.
    """
    with os.fdopen(_acquire(path, what)):
        _held.append(path)
        try:
            yield
        finally:
            _held.remove(path)
            path.unlink(missing_ok=True)


def say_ending() -> None:
    """Say in the locks that this process holds that it will be gone soon; may be called by a signal's handler."""
    for path in _held:
        with suppress(OSError), path.open("r+b") as file:  # its file may be gone by now; ending goes on
            file.write(f"{os.getpid()} {_ENDING}\n".encode())  # over the number, which is never gone from the file


def _acquire(path: Path, what: str) -> int:
    while True:
        handle = -1
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us may have removed the file between our two calls: then this lock is nobody's.
            if _same_file(handle, path):
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
                return handle
            os.close(handle)
        except BlockingIOError:
            holder, _, note = os.pread(handle, 32, 0).decode(errors="replace").strip().partition(" ")
            who = f"process {holder}" if holder.isdigit() else "another process"
            if note == _ENDING:
                print(f"{who} is {what} and about to end: waiting for it", file=sys.stderr, flush=True)
                with os.fdopen(handle):
                    fcntl.flock(handle, fcntl.LOCK_EX)
                continue
            os.close(handle)
            raise UserError(f"{who} is {what} already: wait for it, or stop it first.") from None
        except OSError as error:
            if handle >= 0:
                os.close(handle)
            if error.errno == errno.ENOSPC:
                raise
            raise UserError(f"cannot write into {path.parent}: {error.strerror}; choose another --output.") from error


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
