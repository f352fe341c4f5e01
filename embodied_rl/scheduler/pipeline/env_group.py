"""An env group: envs that step, render and wait for their decisions together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch

from embodied_rl.rollout.episode import ActiveEpisode
from embodied_rl.rollout.observation_pool import StepRecord
from embodied_rl.types import ActOutput, ChunkResult, EpisodeSpec, Observation, take_rows


@dataclass(slots=True, eq=False)
class EnvGroupView:
    """Observations of some envs: row i of `obs` is `episodes[i]` in `env_ids[i]`; `obs` lies in the memory `block`.

    drawn: on a GPU, what `obs` is there after (`ActStream.mark`).
    """

    env_ids: list[int]
    episodes: list[ActiveEpisode]
    block: Observation
    obs: Observation
    drawn: torch.Event | None = None


@dataclass(slots=True)
class Decision:
    """The policy's output for a view, and which version of the policy it was.

    made: on a GPU, what the actions are there after (`ActStream.mark`).
    """

    act: ActOutput
    version: int
    made: torch.Event | None = None


@dataclass(slots=True, eq=False)
class EnvGroup:
    """A group is in one place at a time: with a worker, with the policy, or parked. Only who holds it may touch it.

    active: the running episode by env id. assigned: episodes to reset free envs to. view: None until rendered.
    parked: there is nothing for it to run.
    """

    env_ids: list[int]
    active: dict[int, ActiveEpisode] = field(default_factory=dict)
    assigned: list[EpisodeSpec] = field(default_factory=list)
    parked: bool = True
    view: EnvGroupView | None = None
    decision: Decision | None = None
    since: float = 0.0
    """When it began to wait where it is (time.perf_counter)."""

    def free_env_ids(self) -> list[int]:
        """Envs without an episode."""
        return [env_id for env_id in self.env_ids if env_id not in self.active]


def make_env_groups(num_envs: int, count: int) -> list[EnvGroup]:
    """Cut envs 0, ..., num_envs - 1 into `count` groups whose sizes differ by at most one."""
    return [EnvGroup([int(env_id) for env_id in env_ids]) for env_ids in np.array_split(np.arange(num_envs), count)]


def make_step_record(view: EnvGroupView, decision: Decision, result: ChunkResult, mask: torch.Tensor) -> StepRecord:
    """The rows of a decision that was carried out; all rows are referred to."""
    reward = result.reward.sum(dim=1)
    return StepRecord(view.block, view.obs, decision.act, reward, mask, len(view.env_ids), decision.version)


def split(act: ActOutput, sizes: Sequence[int]) -> list[ActOutput]:
    """Cut an output into consecutive parts of `sizes` rows."""
    ends = list(accumulate(sizes, initial=0))
    return [take_rows(act, slice(*pair)) for pair in pairwise(ends)]
