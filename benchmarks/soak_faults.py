"""What `soak` does to a run: faults that a process lives in, and files damaged between two processes."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor

from embodied_rl.learner import imitation
from embodied_rl.learner.checkpoint import Checkpoints
from embodied_rl.rng import philox
from embodied_rl.rollout import observation_pool
from embodied_rl.scheduler import serial
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.training import filtered_bc
from embodied_rl.types import ChunkResult

FAULTS = ("kill", "kill", "kill", "interrupt", "disk full", "slow disk", "clock jump", "out of memory")
"""One is drawn for each process. All but an interrupt, a full disk and a lack of memory end in a kill."""
WORKER = "worker killed"
"""Of runs whose envs are in a process of their own: that is killed, as the kernel does where memory is short."""
_LAST_SYNC = 60
"""A full disk shows in one of so many first writes that are made durable."""
_DAY = 86_400.0
_LAST_BATCH, _BLOCK = 3, 2**28
"""Memory is short from one of so many first batches on, which then want a block of so many bytes."""
_STEPS = 10, 100
"""A worker process is killed before one of these steps."""


@contextmanager
def live_through(fault: str | None, seed: int) -> Iterator[None]:
    """A `with` block in which one of these goes wrong: the disk, the clock, memory, or the process with the envs."""
    draw = philox(seed, 32)
    happens = {
        "disk full": _full_disk,
        "slow disk": _slow_disk,
        "clock jump": _clock_jump,
        "out of memory": _short_memory,
        WORKER: _killed_worker,
    }.get(fault or "")
    with contextlib.nullcontext() if happens is None else happens(draw):
        yield


@contextmanager
def _full_disk(draw: np.random.Generator) -> Iterator[None]:
    """From some write on nothing can be made durable."""
    left, real = int(draw.integers(_LAST_SYNC)), os.fsync

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with mock.patch.object(os, "fsync", full):
        yield


@contextmanager
def _slow_disk(draw: np.random.Generator) -> Iterator[None]:
    real = os.fsync

    def slow(handle: int) -> None:
        time.sleep(0.02)
        real(handle)

    with mock.patch.object(os, "fsync", slow):
        yield


@contextmanager
def _clock_jump(draw: np.random.Generator) -> Iterator[None]:
    offset, now = float(draw.uniform(-30 * _DAY, 30 * _DAY)), time.time

    def jumped() -> float:
        return now() + offset

    with mock.patch.object(time, "time", jumped):
        yield


@contextmanager
def _short_memory(draw: np.random.Generator) -> Iterator[None]:
    """From some batch of observations on the address space can't grow, and no block of memory is had."""
    left, before = int(draw.integers(_LAST_BATCH)), resource.getrlimit(resource.RLIMIT_AS)

    def short(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), before[1]))
                bytearray(_BLOCK)
            return real(*arguments)

        return called

    try:
        with (
            mock.patch.object(serial, "gather", short(observation_pool.gather)),
            mock.patch.object(filtered_bc, "imitation_loss", short(imitation.imitation_loss)),
        ):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def _killed_worker(draw: np.random.Generator) -> Iterator[None]:
    """The processes with the envs are killed before one of their steps, as the kernel does where memory is short."""
    left, step = int(draw.integers(*_STEPS)), ProcessVecEnv.step

    def killed(env: ProcessVecEnv, env_ids: Sequence[int], actions: Tensor) -> ChunkResult:
        nonlocal left
        left -= 1
        if left == 0:
            for worker in multiprocessing.active_children():
                worker.kill()
        return step(env, env_ids, actions)

    with mock.patch.object(ProcessVecEnv, "step", killed):
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
