"""Chunks over simulators that are stepped from Python, one control step at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from embodied_rl.policy import action_array
from embodied_rl.types import Array, ChunkResult
from embodied_rl.vec_env import EnvInfo

if TYPE_CHECKING:
    import torch


def bounded_actions(actions: torch.Tensor, rows: int, info: EnvInfo) -> Array:
    """Actions of N = `rows` envs, clipped to the bounds of `info`: float32 [N, K, A].

    Raises:
        ValueError: for another shape or dtype, K = 0, or a number that is not finite.
    """
    arrays = action_array(actions)
    if len(arrays) != rows or arrays.shape[1] < 1 or arrays.shape[2] != info.action_dim:
        raise ValueError(f"actions must be [{rows}, K, {info.action_dim}] with K >= 1, got {arrays.shape}")
    return arrays.clip(np.asarray(info.action_low, np.float32), np.asarray(info.action_high, np.float32))


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a control step of one env led to; at most one of terminated, truncated and failed."""

    reward: float
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    failed: bool = False

    @property
    def over(self) -> bool:
        """Whether the episode ended."""
        return self.terminated or self.truncated or self.failed


class ChunkBook:
    """The ChunkResult of N envs and K steps, written step by step.

    Example:
        >>> book = ChunkBook(rows=1, steps=4)
        >>> book.add(0, StepOutcome(reward=1.0, success=True, terminated=True))
        >>> book.result().steps_taken
        tensor([1], dtype=torch.int32)
    """

    def __init__(self, rows: int, steps: int) -> None:
        self.taken = np.zeros(rows, np.int32)
        self._reward = np.zeros((rows, steps), np.float32)
        self._flags = {name: np.zeros(rows, np.bool_) for name in ("terminated", "truncated", "success", "failed")}

    def add(self, row: int, outcome: StepOutcome) -> None:
        """One more executed step of a row."""
        self._reward[row, self.taken[row]] = outcome.reward
        self.taken[row] += 1
        for name, flag in self._flags.items():
            flag[row] |= getattr(outcome, name)

    def result(self) -> ChunkResult:
        """All of it, on the CPU."""
        return ChunkResult.from_numpy(reward=self._reward, steps_taken=self.taken, **self._flags)
