"""The child's side of `process_env`: one simulator in a process of its own, its pictures in shared memory.

Imports nothing that a simulator does not need: a child starts often.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.types import Array, ChunkResult, Observation
from embodied_rl.utils.processes import leave_stopping_to_the_parent
from embodied_rl.vec_env import EnvInfo, VecEnv

EnvFactory = Callable[[int], VecEnv]
"""Builds a simulator with that many envs; it must be importable by name, as the child builds it."""
RESULT_FIELDS = ("reward", "terminated", "truncated", "success", "steps_taken", "failed")


@dataclass(frozen=True, slots=True)
class Layout:
    """Shapes of one row: images uint8 [V, H, W, 3], proprio float32 [P]."""

    images: tuple[int, ...]
    proprio: tuple[int, ...]

    def nbytes(self, rows: int) -> int:
        """Bytes of shared memory for that many rows."""
        return rows * (int(np.prod(self.images)) + 4 * int(np.prod(self.proprio)))

    def arrays(self, memory: SharedMemory, rows: int) -> tuple[Array, Array]:
        """Views (images, proprio) of shared memory."""
        images = np.ndarray((rows, *self.images), np.uint8, memory.buf)
        return images, np.ndarray((rows, *self.proprio), np.float32, memory.buf, offset=images.nbytes)


@dataclass(frozen=True, slots=True)
class Hello:
    """What a child says once its simulator is there."""

    info: EnvInfo
    layout: Layout


@dataclass(frozen=True, slots=True)
class Reply:
    """A command was carried out; rss: resident memory of the child (bytes)."""

    value: Any
    rss: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A command, or the start, raised this; bad_input: a UserError, which would come again."""

    text: str
    bad_input: bool = False


def serve(connection: Connection, factory: EnvFactory, env_ids: int) -> None:
    """Build a simulator and carry out commands until the parent is gone."""
    leave_stopping_to_the_parent()
    try:
        env = factory(env_ids)
        row = env.new_observation(1)
        connection.send(Hello(env.info, Layout(row.images.shape[1:], row.proprio.shape[1:])))
        memory = SharedMemory(connection.recv())
        images, proprio = Layout(row.images.shape[1:], row.proprio.shape[1:]).arrays(memory, env_ids)
        while True:
            name, arguments = connection.recv()
            connection.send(Reply(_carry_out(env, name, arguments, images, proprio), rss()))
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent is gone or has given up: nothing is left to clean up for
    except UserError as error:
        connection.send(Failure(str(error), bad_input=True))
        os._exit(1)
    except BaseException:  # noqa: BLE001 - the parent reports it and starts another child
        connection.send(Failure(traceback.format_exc()))
        os._exit(1)


def _carry_out(env: VecEnv, name: str, arguments: tuple[Any, ...], images: Array, proprio: Array) -> Any:
    if name == "reset":
        env.reset(*arguments)
        return None
    if name == "step":
        result: ChunkResult = env.step(*arguments)
        return tuple(getattr(result, field) for field in RESULT_FIELDS)
    if name == "frame":
        return env.frame(*arguments)  # pyright: ignore[reportAttributeAccessIssue] - only asked of simulators that have it
    (env_ids,) = arguments
    out = Observation(images[: len(env_ids)], proprio[: len(env_ids)], [""] * len(env_ids))
    return out.instruction, list(env.observe(env_ids, out) or ())


def rss() -> int:
    """Resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
