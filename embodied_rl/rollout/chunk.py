"""Chunks of many envs at once: what goes wrong with one row leaves the others alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from embodied_rl.rollout.episode import ActiveEpisode
from embodied_rl.rollout.retries import finite_rows
from embodied_rl.types import ChunkResult, Observation
from embodied_rl.vec_env import VecEnv


def step_rows(env: VecEnv, env_ids: Sequence[int], obs: Observation, actions: torch.Tensor) -> ChunkResult:
    """Step the rows of a decision.

    Rows whose actions are not finite, or were decided from numbers that are not, never reach the simulator: they count
    as failed.

    Args:
        env_ids: N env ids.
        obs: what they showed.
        actions: float32 [N, K, A].

    Returns:
        Results of all N rows, in host memory, where episodes are kept.
    """
    finite = torch.isfinite(actions).all(dim=2).all(dim=1).tolist()
    sound = [good and seen for good, seen in zip(finite, finite_rows(obs), strict=True)]
    going = [row for row, good in enumerate(sound) if good]
    if len(going) == len(env_ids):
        return env.step(env_ids, actions).to("cpu")
    out = ChunkResult.zeros(*actions.shape[:2])
    out.failed[[row for row, good in enumerate(sound) if not good]] = True
    if going:
        out.put(going, env.step([env_ids[row] for row in going], actions[going]).to("cpu"))
    return out


@dataclass(frozen=True, slots=True)
class Ends:
    """What is wanted of the observation after an episode's last step.

    value: the critic's value, of episodes that reached their horizon. images: its pictures, of every episode.
    """

    value: bool = False
    images: bool = False

    def rows(self, result: ChunkResult) -> list[int]:
        """The rows of a chunk that are to be observed now, before their envs are reset."""
        if self.images:
            return torch.nonzero((result.terminated | result.truncated) & ~result.failed).flatten().tolist()
        return open_ends(result) if self.value else []

    def keep(
        self, episodes: Sequence[ActiveEpisode], result: ChunkResult, rows: list[int], obs: Observation
    ) -> tuple[list[int], Observation]:
        """Give the episodes their final images; return the rows that are to be valued, and their observation.

        Args:
            episodes: N, of all rows of the chunk.
            rows: those that `obs` shows.
        """
        if self.images:
            for place, row in enumerate(rows):
                episodes[row].final_images = obs.images[place].to("cpu", copy=True)
        valued = set(open_ends(result)) if self.value else set()
        places = [place for place, row in enumerate(rows) if row in valued]
        return (rows, obs) if len(places) == len(rows) else ([rows[place] for place in places], obs.rows(places))


def open_ends(result: ChunkResult) -> list[int]:
    """The rows whose episode reached its horizon: a critic values what they show now."""
    return torch.nonzero(result.truncated & ~result.terminated & ~result.failed).flatten().tolist()


def observe_ends(
    env: VecEnv, env_ids: Sequence[int], result: ChunkResult, rows: list[int], out: Observation
) -> tuple[list[int], Observation]:
    """Observe `rows` of `env_ids` after their last step.

    If the simulator died after the last step, or shows numbers that are not finite, the rows are marked failed in
    `result`: nobody knows what they show.

    Args:
        out: len(rows) rows to render into.

    Returns:
        The rows that were observed, and their observation.
    """
    gone = set(env.observe([env_ids[row] for row in rows], out) or ())
    result.lost[[rows[index] for index in gone]] = True  # nobody knows whose episode broke it
    lost = gone | {index for index, good in enumerate(finite_rows(out)) if not good}
    if not lost:
        return rows, out
    result.failed[[rows[index] for index in lost]] = True
    seen = [index for index in range(len(rows)) if index not in lost]
    return [rows[index] for index in seen], out.rows(seen)
