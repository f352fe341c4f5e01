"""What a loss gets and returns, and what the learner and the rollout need of an algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from embodied_rl.algorithms.config import RatioLevel
from embodied_rl.policy import Policy
from embodied_rl.types import EvalOutput, RolloutBatch

PartWeight = Literal["episodes", "units"]


@dataclass(slots=True)
class Rows:
    """Rows `index` of `batch`, with the weight of each ratio unit [r, U] and of each row [r] in the loss."""

    batch: RolloutBatch
    index: Tensor
    unit_weight: Tensor
    row_weight: Tensor


@dataclass(slots=True)
class LossOutput:
    """The loss of some rows.

    loss: scalar with gradients. metrics: scalars that add up over the rows of a batch. ratio_error: the largest
    |new probability / old probability - 1| of an executed term, for the first-step check. ratio_stats:
    `losses.ratio_stats` of the rows.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    ratio_error: Tensor
    ratio_stats: Tensor


def evaluate_rows(policy: Policy, batch: RolloutBatch, index: Tensor) -> EvalOutput:
    """Evaluate rows `index` (int64 [r]) of `batch` under the current policy."""
    return policy.evaluate(
        batch.images[index],
        batch.proprio[index],
        [batch.instruction[i] for i in index.tolist()],
        {key: tensor[index] for key, tensor in batch.replay.items()},
    )


class Algorithm(Protocol):
    """What the learner needs of PPO or GRPO.

    group_size, success_rate_range, max_oversampling: which groups the rollout gathers (`GroupQueue`).
    needs_value: there is a critic to train. needs_final_value: truncated episodes need the value of their last
    observation; without it, `final_value` stays 0. epochs: passes over a batch.
    part_weight: how to weight groups that are prepared one at a time, by episodes or by ratio units; None: `prepare`
    needs the whole batch. ratio_level: what gets one probability ratio.
    """

    group_size: int
    success_rate_range: tuple[float, float] | None
    max_oversampling: float
    needs_value: bool
    needs_final_value: bool
    epochs: int
    part_weight: PartWeight | None
    ratio_level: RatioLevel

    def trains_policy(self, iteration: int) -> bool:
        """False while only the critic learns."""
        ...

    def prepare(self, batch: RolloutBatch, terms_per_step: int) -> tuple[Tensor, dict[str, float]]:
        """Fill `batch.advantage` (and `returns`); return the weights of the ratio units [B, U] and metrics."""
        ...

    def loss(self, policy: Policy, rows: Rows, iteration: int) -> LossOutput:
        """The loss of some rows, a weighted sum."""
        ...
