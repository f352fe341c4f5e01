"""What `soak` does to a run: faults that a process lives in, and files damaged between two processes."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from embodied_rl.learner.checkpoint import Checkpoints
from embodied_rl.rng import philox

FAULTS = ("kill", "kill", "kill", "interrupt", "disk full", "slow disk", "clock jump")
"""One is drawn for each process. All but an interrupt and a full disk end in a kill."""
_LAST_SYNC = 60
"""A full disk shows in one of so many first writes that are made durable."""
_DAY = 86_400.0


@contextmanager
def live_through(fault: str | None, seed: int) -> Iterator[None]:
    """A `with` block in which the disk is full from some write on, or slow, or the clock jumps by up to a month."""
    draw = philox(seed, 32)
    if fault == "disk full":
        left = int(draw.integers(_LAST_SYNC))
        real = os.fsync

        def full(handle: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle)

        with mock.patch.object(os, "fsync", full):
            yield
    elif fault == "slow disk":
        real = os.fsync

        def slow(handle: int) -> None:
            time.sleep(0.02)
            real(handle)

        with mock.patch.object(os, "fsync", slow):
            yield
    elif fault == "clock jump":
        offset, now = float(draw.uniform(-30 * _DAY, 30 * _DAY)), time.time

        def jumped() -> float:
            return now() + offset

        with mock.patch.object(time, "time", jumped):
            yield
    else:
        yield


def tear(path: Path) -> bool:
    """Append half a line, as a kill in the middle of a write leaves it; whether there was a file."""
    if not path.is_file():
        return False
    with path.open("ab") as file:
        file.write(b'{"step": 3, "train/lo')
    return True


def corrupt(checkpoints: Path, draw: np.random.Generator) -> bool:
    """Change one byte of one file of the checkpoint that a resume goes on from; whether there was one."""
    store = Checkpoints(checkpoints, 1)
    newest = store.find() if checkpoints.is_dir() else None
    if newest is None:
        return False
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    path = files[int(draw.integers(len(files)))]
    data = bytearray(path.read_bytes())
    data[int(draw.integers(len(data)))] ^= 0xFF
    path.write_bytes(bytes(data))
    return True
