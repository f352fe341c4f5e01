"""What an iteration is made of, for a schedule that is played on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from embodied_rl.rollout.groups import SuccessRateRange
from embodied_rl.types import EpisodeSpec


@dataclass(frozen=True, slots=True)
class Work:
    """Episodes, and what the learner makes of them.

    length: decisions of an episode; microbatch: rows that are learned in one go. keep, max_factor: as in `GroupQueue`;
    won: whether an episode succeeds. epochs: passes over a batch. minibatch_groups, minibatch_size: of one optimiser
    step, by rows where both are given and the scheduler is not pipelined; neither: a pass is one step. parts:
    whether groups are learned from before their minibatch is whole (its `part_weight`). recompute: whether the
    learner evaluates all rows once more first (`learner.recompute_old_log_probs`).
    """

    worlds: int
    groups: int
    group_size: int
    length: Callable[[EpisodeSpec], int]
    microbatch: int = 32
    keep: SuccessRateRange | None = None
    max_factor: float = 1.0
    won: Callable[[EpisodeSpec], bool] = lambda spec: True
    epochs: int = 1
    minibatch_groups: int | None = None
    minibatch_size: int | None = None
    parts: bool = True
    recompute: bool = False
