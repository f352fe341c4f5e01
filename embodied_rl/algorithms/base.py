"""What an algorithm is to the code around it: prepare(batch) gives weights, then loss(rows) of every minibatch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from embodied_rl.algorithms.config import RatioLevel
from embodied_rl.policy import Policy
from embodied_rl.types import EvalOutput, RolloutBatch

PartWeight = Literal["episodes", "units"]


@dataclass(slots=True)
class Rows:
    """Some rows of a batch, as a loss takes them.

    Args:
        batch: after `prepare`.
        index: int64 [r], which rows.
        unit_weight: float32 [r, U], weight of each ratio unit in the policy's loss.
        row_weight: float32 [r], weight of each row in the value loss.
    """

    batch: RolloutBatch
    index: Tensor
    unit_weight: Tensor
    row_weight: Tensor


@dataclass(slots=True)
class LossOutput:
    """The loss of some rows.

    Args:
        loss: scalar with gradients.
        metrics: scalars that add up over the rows of a batch.
        ratio_error: largest |new probability / old probability - 1| of an executed term, for the first-step check.
        ratio_stats: `losses.ratio_stats` of the rows.
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    ratio_error: Tensor
    ratio_stats: Tensor


def evaluate_rows(policy: Policy, batch: RolloutBatch, index: Tensor) -> EvalOutput:
    """Evaluate rows `index` (int64 [r]) of `batch` under the policy's present weights."""
    frame = index if batch.frame_row is None else batch.frame_row[index]
    return policy.evaluate(
        batch.images[frame],
        batch.proprio[index],
        [batch.instruction[i] for i in index.tolist()],
        {key: tensor[frame] for key, tensor in batch.replay.items()},
    )


class OnPolicyAlgorithm(Protocol):
    """An algorithm that learns from fresh rollouts: PPO, GRPO.

    Attributes:
        group_size, success_rate_range, max_oversampling: what the rollout collects (see GRPOConfig).
        needs_value: whether there is a critic to train.
        needs_final_value: whether a truncated episode needs the value of its last observation.
        epochs: passes over a batch.
        part_weight: how to weight groups that are prepared one at a time: by episodes or by ratio units. None:
            `prepare` needs the whole batch.
        ratio_level: what gets one probability ratio.
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

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of an update that are told.

        metrics: those of `prepare`, of several parts the mean over episodes, and those of the update's steps.
        """
        ...
