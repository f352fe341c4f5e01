"""A lane: slots that step, render and wait for their decisions together, one stage of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.rollout.episode import Running
from embodied_rl.rollout.observation_pool import Round
from embodied_rl.types import ActOutput, Array, ChunkResult, EpisodeSpec, Observation


@dataclass(slots=True)
class View:
    """What some slots show: `obs` is a view of the first rows of `block`; row i shows `episodes[i]` in `slots[i]`."""

    slots: list[int]
    episodes: list[Running]
    block: Observation
    obs: Observation


@dataclass(slots=True)
class Decision:
    """The policy's output for a view, by `version` of the policy."""

    act: ActOutput
    version: int


@dataclass(slots=True)
class Lane:
    """`running` holds the episode of every filled slot. assigned: an episode to begin before any other is asked for.

    A lane is in one place at a time: with a worker, in the queue of the policy, or parked because there is nothing to
    run. Only the thread that holds it may touch it.
    """

    slots: list[int]
    running: dict[int, Running] = field(default_factory=dict)
    assigned: EpisodeSpec | None = None
    view: View | None = None
    decision: Decision | None = None
    since: float = 0.0
    """When it began to wait where it is (time.perf_counter)."""

    def free_slots(self) -> list[int]:
        """Slots without an episode."""
        return [slot for slot in self.slots if slot not in self.running]


def make_lanes(num_envs: int, stages: int) -> list[Lane]:
    """Cut slots 0, ..., num_envs - 1 into `stages` lanes whose sizes differ by at most one."""
    return [Lane([int(slot) for slot in slots]) for slots in np.array_split(np.arange(num_envs), stages)]


def make_round(view: View, decision: Decision, result: ChunkResult, mask: Array) -> Round:
    """The rows of a decision that was carried out; every row is live."""
    reward = result.reward.sum(axis=1, dtype=np.float32)
    return Round(view.block, view.obs, decision.act, reward, mask, len(view.slots), decision.version)


def join(views: Sequence[View]) -> Observation:
    """The observations of several views, one after the other; without a copy if it is one."""
    if len(views) == 1:
        return views[0].obs
    return Observation(
        np.concatenate([view.obs.images for view in views]),
        np.concatenate([view.obs.proprio for view in views]),
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
