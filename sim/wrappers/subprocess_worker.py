"""The child's side of `subprocess_env`: one simulator in its own process, observations in shared memory."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.types import ChunkResult, Observation
from embodied_rl.utils.processes import leave_stopping_to_the_parent
from embodied_rl.vec_env import EnvInfo, VecEnv

EnvFactory = Callable[[int], VecEnv]
"""Builds a simulator with that many envs; it must be importable by name, as the child builds it."""
RESULT_FIELDS = tuple(field.name for field in fields(ChunkResult))


def shared_bytes(info: EnvInfo, rows: int) -> int:
    """Bytes of shared memory that hold an observation of `rows` rows."""
    return max(1, rows * (prod(_images_shape(info)) + 4 * (info.proprio_dim + info.state_dim)))


def shared_observation(info: EnvInfo, memory: SharedMemory, rows: int) -> Observation:
    """An observation of `rows` rows that lies in shared memory."""
    images = np.ndarray((rows, *_images_shape(info)), np.uint8, memory.buf)
    numbers = np.ndarray(rows * (info.proprio_dim + info.state_dim), np.float32, memory.buf, offset=images.nbytes)
    proprio = numbers[: rows * info.proprio_dim].reshape(rows, info.proprio_dim)
    out = Observation.from_numpy(images, proprio, [""] * rows)
    if info.state_dim:
        out.state = torch.from_numpy(numbers[proprio.size :].reshape(rows, info.state_dim))
    return out


def _images_shape(info: EnvInfo) -> tuple[int, int, int, int]:
    return (len(info.cameras), *info.image_shape, 3)


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
        connection.send(env.info)
        memory = SharedMemory(connection.recv())
        shared = shared_observation(env.info, memory, env_ids)
        while True:
            name, arguments = connection.recv()
            connection.send(Reply(_carry_out(env, name, arguments, shared), rss()))
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent is gone or has given up: nothing is left to clean up for
    except UserError as error:
        connection.send(Failure(str(error), bad_input=True))
        os._exit(1)
    except BaseException:  # noqa: BLE001 - the parent reports it and starts another child
        connection.send(Failure(traceback.format_exc()))
        os._exit(1)


def _carry_out(env: VecEnv, name: str, arguments: tuple[Any, ...], shared: Observation) -> Any:
    if name == "reset":
        env.reset(*arguments)
        return None
    if name == "step":
        env_ids, actions = arguments
        result: ChunkResult = env.step(env_ids, torch.from_numpy(actions))
        values = {name: getattr(result, name) for name in RESULT_FIELDS}
        return {name: value.numpy() for name, value in values.items() if value is not None}
    if name == "state":
        read = getattr(env, "state", None)  # not every backend has it
        return "this simulator has no state()" if read is None else read(*arguments).numpy()
    if name == "task_states":
        return tuple(dict(getattr(env, which)) for which in ("train_states", "heldout_states"))
    if name == "frame":
        try:
            return env.frame(*arguments)
        except NotImplementedError as error:  # not a breakdown: the parent raises it again
            return str(error)
    (env_ids,) = arguments
    out = shared.rows(slice(0, len(env_ids)))
    return out.instruction, list(env.observe(env_ids, out) or ())


def rss() -> int:
    """Resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
