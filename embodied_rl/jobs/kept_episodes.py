"""The episodes of an evaluation, kept frame by frame (`eval --keep`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied_rl.data.episodes import EpisodeStore
from embodied_rl.rollout.recording import RecordingVecEnv
from embodied_rl.training.filtered_bc import STORE, frames_of, stored_episode, weights_digest
from embodied_rl.types import EpisodeResult
from embodied_rl.vec_env import VecEnv


class KeptEpisodes:
    """Stores the episodes of an evaluation in its folder. `env` is what the evaluation must run in.

    Args:
        env: the simulator.
        policy: that acts.
        folder: of the evaluation.

    Raises:
        UserError: what the simulator shows has no place in a data set, or the folder has episodes of another policy.

    Example:
        >>> kept = KeptEpisodes(env, policy, folder)
        >>> evaluate(kept.env, policy, specs, "greedy", on_episode=kept.add)
    """

    def __init__(self, env: VecEnv, policy: Any, folder: Path) -> None:
        self.env = RecordingVecEnv(env)
        self._digest = weights_digest(policy)
        self._store = EpisodeStore(folder / STORE, frames_of(env.info, {}), {"policy": self._digest})

    def add(self, result: EpisodeResult) -> None:
        """Store an episode that has ended, before its env begins another."""
        episode, info = stored_episode(self.env.take(result.spec), result, self._digest)
        self._store.add(episode, info if self.env.info.has_success else replace(info, success=-1))
