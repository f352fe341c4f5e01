"""Another sign of the gripper: what a policy gets wrong that learned the other convention."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import ChunkResult


class FlipGripper(VecEnvWrapper):
    """`embodied_rl.vec_env.VecEnv` that runs another one with the last action component negated.

    Args:
        env: the one that runs.

    Example:
        >>> env = FlipGripper(env)  # +1 now opens where it closed
    """

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`, with -g for the gripper value g."""
        sign = torch.ones(actions.shape[-1], device=actions.device)
        sign[-1] = -1.0
        return super().step(env_ids, actions * sign)
