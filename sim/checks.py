"""What every simulator checks before it begins episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.task import TaskSpec
from embodied_rl.types import EpisodeSpec


def check_env_ids(env_ids: Sequence[int], num_envs: int) -> None:
    """ValueError unless `env_ids` differ and lie in 0 to `num_envs` - 1."""
    if len(set(env_ids)) != len(env_ids):
        raise ValueError(f"env_ids must differ, got {list(env_ids)}")
    for index in env_ids:
        if not 0 <= index < num_envs:
            raise ValueError(f"env {index} is not in 0..{num_envs - 1}")


def check_counts(env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
    """ValueError unless there is an episode for each env."""
    if len(env_ids) != len(episodes):
        raise ValueError(f"{len(env_ids)} envs for {len(episodes)} episodes")


def check_episodes(env_ids: Sequence[int], episodes: Sequence[EpisodeSpec], tasks: Mapping[str, TaskSpec]) -> None:
    """What a `reset` needs: an episode for each env, of one of `tasks` (by full name), from an initial state it has.

    Raises:
        ValueError: There are more of one than of the other.
        UserError: For an unknown task or initial state.
    """
    check_counts(env_ids, episodes)
    for spec in episodes:
        if spec.task not in tasks:
            raise UserError(f"unknown task '{spec.task}'.{suggest(spec.task, tasks)}")
        count = len(tasks[spec.task].init_states)
        if not 0 <= spec.init_state < count:
            raise UserError(f"task '{spec.task}' has initial states 0 to {count - 1}, got {spec.init_state}")
