"""What a policy commanded in an episode, step by step, and how smooth that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import Array, ChunkResult, EpisodeSpec
from embodied_rl.vec_env import VecEnv

_TRANSLATION = 3


class ActionRecorder(VecEnvWrapper):
    """`embodied_rl.vec_env.VecEnv` that runs another one and keeps the actions of its episodes.

    Args:
        env: the one that runs.

    Example:
        >>> env = ActionRecorder(env)
        >>> report = evaluate(env, policy, specs, "greedy")
        >>> smoothness(env.take(specs[0].episode_id))
        {'path_length': 14.8, 'jerk': 0.21}
    """

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self._low, self._high = (np.asarray(row, np.float32) for row in (env.info.action_low, env.info.action_high))
        self._episode: dict[int, int] = {}
        """Episode id by env id."""
        self._steps: dict[int, list[Array]] = {}
        """Executed parts of chunks, by episode id."""

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`; an episode that begins again is recorded anew."""
        super().reset(env_ids, episodes)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._episode[env_id] = spec.episode_id
            self._steps[spec.episode_id] = []

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`."""
        result = super().step(env_ids, actions)
        commands = actions.detach().cpu().numpy().clip(self._low, self._high)
        for env_id, row, taken in zip(env_ids, commands, result.steps_taken.tolist(), strict=True):
            self._steps[self._episode[env_id]].append(row[:taken].copy())
        return result

    def take(self, episode_id: int) -> Array:
        """float32 [steps, A], the clipped commands of a finished episode; ask once for each."""
        parts = self._steps.pop(episode_id)
        return np.concatenate(parts) if parts else np.zeros((0, self.info.action_dim), np.float32)


def smoothness(actions: Array) -> dict[str, float]:
    """Figures of commanded translations, float32 [steps, >= 3], in units of the largest command.

    Returns:
        path_length: sum of their lengths. jerk: root mean square of their second difference, a control step; 0 below
        three steps. A translation command is a velocity, so its second difference is a jerk.
    """
    moves = actions[:, :_TRANSLATION].astype(np.float64)
    path = float(np.linalg.norm(moves, axis=1).sum())
    bends = np.diff(moves, n=2, axis=0)
    jerk = float(np.sqrt((bends**2).sum(axis=1).mean())) if len(bends) else 0.0
    return {"path_length": round(path, 6), "jerk": round(jerk, 6)}
