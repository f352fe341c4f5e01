"""What every wrapper of an environment passes on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo, VecEnv


class VecEnvWrapper:
    """`embodied_rl.vec_env.VecEnv` that runs another one; subclasses change a method.

    Args:
        env: the one that runs.

    Example:
        >>> class Still(VecEnvWrapper):
        ...     def step(self, env_ids, actions):
        ...         return super().step(env_ids, 0 * actions)
    """

    def __init__(self, env: VecEnv) -> None:
        self.num_envs = env.num_envs
        self.info: EnvInfo = env.info
        self._env = env

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`."""
        self._env.reset(env_ids, episodes)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`."""
        return self._env.step(env_ids, actions)

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`."""
        return self._env.observe(env_ids, out)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """As `VecEnv.frame`."""
        return self._env.frame(env_id, camera, size)

    def new_observation(self, rows: int) -> Observation:
        """As `VecEnv.new_observation`."""
        return self._env.new_observation(rows)

    def close(self) -> None:
        """As `VecEnv.close`."""
        self._env.close()
