"""One call runs up to K control steps of an env whose actions are joint positions: controls, physics, stages.

Position actuators of the model follow the joints, so that nothing is computed between substeps: they are `mj_step`s.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from embodied_rl.sim.mujoco.borrow import borrowed
from embodied_rl.sim.mujoco.kernel import FAILED, RUNNING, SUCCESS
from embodied_rl.sim.mujoco.mjlib import contact_geoms, diverged, mj_step, mj_step1, mj_step2, num_contacts
from embodied_rl.sim.mujoco.sources import source_digest
from embodied_rl.types import Array


class Drives(NamedTuple):
    """Where an action's numbers go: `ctrl[actuator] = scale * action[source] + offset`.

    Args:
        actuator, source: int64 [D].
        scale, offset: float64 [D].
        low, high: float64 [A], to which an action is clipped first; float32 numbers, as actions are.
    """

    actuator: Array
    source: Array
    scale: Array
    offset: Array
    low: Array
    high: Array


class StageTable(NamedTuple):
    """S stages over T touches.

    Args:
        side: uint8 [T, ngeom]: 1 for a touch's first geoms, 2 for its second.
        wanted: int8 [S, T]: 1 where the stage needs the touch, -1 where it forbids it, else 0.
    """

    side: Array
    wanted: Array


@njit(nogil=True)
def _touches(side: Array, data: int) -> bool:
    """Whether a contact is of a first geom with a second one, in MuJoCo's order of the two."""
    for i in range(num_contacts(data)):
        first, second = contact_geoms(data, i)
        if first >= 0 and second >= 0 and side[first] & 1 and side[second] & 2:
            return True
    return False


@njit(nogil=True)
def _judge(table: StageTable, data: int, held: Array) -> bool:
    """Write into held, bool [S], which stages are reached: all up to the highest that holds now. Whether all are."""
    stages, touches = table.wanted.shape
    reached = 0
    now = np.empty(touches, np.bool_)
    for t in range(touches):
        now[t] = _touches(table.side[t], data)
    for s in range(stages):
        holds = True
        for t in range(touches):
            want = table.wanted[s, t]
            if want != 0 and now[t] != (want > 0):
                holds = False
        if holds:
            reached = s + 1
    for s in range(stages):
        held[s] = s < reached
    return stages > 0 and reached == stages


@njit(nogil=True)
def _control_step(model: int, data: int, action: Array, drives: Drives, ctrl: Array, substeps: int) -> None:
    """What mj_step1 computes is of the present state before and after, as dm_control leaves it: contacts are judged."""
    for d in range(drives.actuator.shape[0]):
        a = drives.source[d]
        x = min(max(np.float64(action[a]), drives.low[a]), drives.high[a])
        ctrl[drives.actuator[d]] = drives.scale[d] * x + drives.offset[d]
    mj_step2(model, data)
    for _ in range(substeps - 1):
        mj_step(model, data)
    mj_step1(model, data)


@njit(nogil=True)
def _finite(qpos: Array, qvel: Array) -> bool:
    for x in qpos:
        if not np.isfinite(x):
            return False
    for x in qvel:  # noqa: SIM110 (numba has no all() over a generator)
        if not np.isfinite(x):
            return False
    return True


def _entry_points(sources: str) -> tuple[Callable[..., tuple[int, int]], Callable[..., bool]]:
    """The functions that Python calls, cached on disk for these sources."""

    @njit(cache=True, nogil=True)
    def run_joint_chunk(
        model: int,
        data: int,
        actions: Array,
        drives: Drives,
        substeps: int,
        qpos: Array,
        qvel: Array,
        ctrl: Array,
        table: StageTable,
        held: Array,
        reward: Array,
        stop: bool,
    ) -> tuple[int, int]:
        _ = sources
        drives, table = borrowed((drives, table))  # pyright: ignore[reportCallIssue]  # numba gives the context itself
        actions, qpos, qvel, ctrl = borrowed((actions, qpos, qvel, ctrl))
        held, reward = borrowed((held, reward))
        for k in range(actions.shape[0]):
            _control_step(model, data, actions[k], drives, ctrl, substeps)
            if diverged(data) or not _finite(qpos, qvel):
                return k + 1, FAILED
            if _judge(table, data, held):
                reward[k] = 1.0
                if stop:
                    return k + 1, SUCCESS
        return actions.shape[0], RUNNING

    @njit(cache=True, nogil=True)
    def judge_stages(data: int, table: StageTable, held: Array) -> bool:
        _ = sources
        return _judge(table, data, held)

    return run_joint_chunk, judge_stages


run_joint_chunk, judge_stages = _entry_points(source_digest())
"""run_joint_chunk runs actions [K, A] until the physics diverges, or with `stop` until the last stage is reached; it
returns the number of steps taken and RUNNING, SUCCESS or FAILED. model, data: addresses; data is as mj_step1 leaves it.
qpos, qvel, ctrl: of mjData. reward: float32 [K], receives 1 where the last stage is reached after a step. held: bool
[S], the stages after the last step. judge_stages only evaluates these."""


def is_compiled() -> bool:
    """Whether machine code of `run_joint_chunk` is in numba's disk cache; without it the first call takes a while."""
    return any(Path(run_joint_chunk.stats.cache_path).glob("joint_kernel.*run_joint_chunk-*.nbi"))
