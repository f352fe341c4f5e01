"""A env group: envs that step, render and wait for their decisions together, one stage of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from embodied_rl.rollout.episode import ActiveEpisode
from embodied_rl.rollout.observation_pool import StepRecord
from embodied_rl.types import ActOutput, ChunkResult, EpisodeSpec, Observation


@dataclass(slots=True)
class EnvGroupView:
    """What some envs show: `obs` is a view of the first rows of `block`; row i shows `episodes[i]` in `env_ids[i]`."""

    env_ids: list[int]
    episodes: list[ActiveEpisode]
    block: Observation
    obs: Observation


@dataclass(slots=True)
class Decision:
    """The policy's output for a view, by `version` of the policy."""

    act: ActOutput
    version: int


@dataclass(slots=True)
class EnvGroup:
    """`running` holds the episode of every filled env. assigned: an episode to begin before any other is asked for.

    A env group is in one place at a time: with a worker, in the queue of the policy, or parked because there is
    nothing to run. Only the thread that holds it may touch it.
    """

    env_ids: list[int]
    active: dict[int, ActiveEpisode] = field(default_factory=dict)
    assigned: EpisodeSpec | None = None
    view: EnvGroupView | None = None
    decision: Decision | None = None
    since: float = 0.0
    """When it began to wait where it is (time.perf_counter)."""

    def free_env_ids(self) -> list[int]:
        """Slots without an episode."""
        return [env_id for env_id in self.env_ids if env_id not in self.active]


def make_env_groups(num_envs: int, stages: int) -> list[EnvGroup]:
    """Cut envs 0, ..., num_envs - 1 into `stages` env groups whose sizes differ by at most one."""
    return [EnvGroup([int(env_id) for env_id in env_ids]) for env_ids in np.array_split(np.arange(num_envs), stages)]


def make_step_record(view: EnvGroupView, decision: Decision, result: ChunkResult, mask: torch.Tensor) -> StepRecord:
    """The rows of a decision that was carried out; every row is live."""
    reward = result.reward.sum(dim=1)
    return StepRecord(view.block, view.obs, decision.act, reward, mask, len(view.env_ids), decision.version)


def join(views: Sequence[EnvGroupView]) -> Observation:
    """The observations of several views, one after the other; without a copy if it is one."""
    if len(views) == 1:
        return views[0].obs
    return Observation(
        torch.cat([view.obs.images for view in views]),
        torch.cat([view.obs.proprio for view in views]),
        [text for view in views for text in view.obs.instruction],
    )


def split(act: ActOutput, sizes: Sequence[int]) -> list[ActOutput]:
    """Cut an output into consecutive parts of `sizes` rows."""
    parts, end = [], 0
    for size in sizes:
        rows = slice(end, end := end + size)
        value = None if act.value is None else act.value[rows]
        replay = {key: tensor[rows] for key, tensor in act.replay.items()}
        parts.append(ActOutput(act.actions[rows], act.log_prob[rows], value, replay))
    return parts
