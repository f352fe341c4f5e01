"""Stepping and observing many envs, where a failure in one row leaves the others alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_rl.types import Array, ChunkResult, Observation
from embodied_rl.vec_env import VecEnv


def step_rows(env: VecEnv, env_ids: Sequence[int], actions: Array, rows: Array) -> ChunkResult:
    """Step `rows` (int [r]) of `envs` and return results for all of them, float32 actions [N, K, A].

    Rows whose actions are not finite never reach the simulator: they count as failed. Rows that are not named get
    zeros.
    """
    finite = np.isfinite(actions[rows]).all(axis=(1, 2))
    going = rows[finite]
    if len(going) == len(env_ids):
        return env.step(env_ids, actions)
    count, chunk = actions.shape[:2]
    out = ChunkResult(
        reward=np.zeros((count, chunk), np.float32),
        terminated=np.zeros(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        success=np.zeros(count, np.bool_),
        steps_taken=np.zeros(count, np.int32),
        failed=np.zeros(count, np.bool_),
    )
    out.failed[rows[~finite]] = True
    if len(going):
        part = env.step([env_ids[row] for row in going], actions[going])
        for name in ("reward", "terminated", "truncated", "success", "steps_taken", "failed"):
            getattr(out, name)[going] = getattr(part, name)
    return out


def open_ends(result: ChunkResult) -> list[int]:
    """The rows whose episode ran out of time: what they show now has a value."""
    return np.flatnonzero(result.truncated & ~result.terminated & ~result.failed).tolist()


def observe_ends(
    env: VecEnv, env_ids: Sequence[int], result: ChunkResult, rows: list[int], out: Observation
) -> tuple[list[int], Observation]:
    """Observe `rows` of `env_ids` after their last step; return those that were observed, and their observation.

    If a simulator died after that step, its rows are marked as failed, because their final value cannot be computed.
    out: len(rows) rows to render into.
    """
    lost = set(env.observe([env_ids[row] for row in rows], out) or ())
    if not lost:
        return rows, out
    result.failed[[rows[index] for index in lost]] = True
    seen = [index for index in range(len(rows)) if index not in lost]
    kept = Observation(out.images[seen], out.proprio[seen], [out.instruction[index] for index in seen])
    return [rows[index] for index in seen], kept
