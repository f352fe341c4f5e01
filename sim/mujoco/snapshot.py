"""The full state of an env as one row of numbers: from it an episode goes on bit for bit, in any env of that model.

A row is [control steps so far, MuJoCo's integration state (time, qpos, qvel, act, warm start, controls, ...), the
controller's state, what an observation shows, what held, poses as the last substep left them].
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.env import Env
from embodied_rl.types import Array

_INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)
_SCRATCH = ("jac_pos", "jac_rot")
_POSES = ("xpos", "xquat", "xmat", "xipos", "site_xpos", "site_xmat")
"""A control step leaves them one substep (2 ms) behind qpos, and rewards read them so."""


def take(world: Env, steps: int) -> Array:
    """The state of `world`, which its episode reached after so many control steps: float64 [D].

    Before the first step the goal is judged for the row alone: `world` itself stays as it is.
    """
    held = world.held.copy()
    if steps == 0:
        world.judge_start()
    state = np.empty(_state_size(world))
    mujoco.mj_getState(world.model, world.data, state, _INTEGRATION)
    row = np.concatenate([[float(steps)], state, *(array.ravel() for array in _arrays(world))])
    world.held[:] = held
    return row


def restore(world: Env, row: Array) -> int:
    """Put `world` into a state that `take` made, and return the control steps that its episode has had.

    Raises:
        UserError: the row is of another model.
    """
    size, arrays = _state_size(world), list(_arrays(world))
    if row.shape != (1 + size + sum(array.size for array in arrays),):
        raise UserError(f"a state of {row.size} numbers is of another model: make the start bank anew")
    state = row[1 : 1 + size]
    mujoco.mj_resetData(world.model, world.data)
    mujoco.mj_setState(world.model, world.data, state, _INTEGRATION)
    mujoco.mj_forward(world.model, world.data)  # contacts, for what reads them before the next step
    mujoco.mj_setState(world.model, world.data, state, _INTEGRATION)  # mj_forward left a warm start of its own
    at = 1 + size
    for array in arrays:
        array[...] = row[at : at + array.size].reshape(array.shape)
        at += array.size
    return int(row[0])


def model_digest(model: mujoco.MjModel) -> str:
    """SHA-256 of a physics model: states go with it, and with this version of MuJoCo."""
    binary = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    return hashlib.sha256(binary.tobytes()).hexdigest()


def _state_size(world: Env) -> int:
    return mujoco.mj_stateSize(world.model, _INTEGRATION)


def _arrays(world: Env) -> Iterator[Array]:
    """What is beside MuJoCo's own state, in the order of a row."""
    for name, array in world.control._asdict().items():
        if name not in _SCRATCH:
            yield array
    yield from world.seen
    yield world.held
    for name in _POSES:
        yield getattr(world.data, name)
