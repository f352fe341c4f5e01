"""The contract of reward models: what a rollout's rows are worth, before advantages are computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from embodied_rl.types import RolloutBatch


class RewardModel(Protocol):
    """Gives the rows of finished episodes new rewards, between the rollout and `OnPolicyAlgorithm.prepare`.

    A batch may be relabelled whole or group by group, so a row's reward must not depend on other groups.

    Attributes:
        needs_final_images: whether it looks at `RolloutBatch.final_images`, which the rollout records only then.

    Example:
        class Progress:
            needs_final_images = False

            def relabel(self, batch: RolloutBatch) -> RolloutBatch:
                return with_rewards(batch, self.network(batch.images, batch.instruction))

            def drain(self) -> dict[str, float]:
                return {}
    """

    needs_final_images: bool

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """Return the batch with the rewards to learn from; `batch` itself is not changed."""
        ...

    def drain(self) -> dict[str, float]:
        """Metrics of what was relabelled since the last call."""
        ...


class SimulatorReward:
    """The identity: rewards as the simulator gave them."""

    needs_final_images = False

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """Return `batch`."""
        return batch

    def drain(self) -> dict[str, float]:
        """None."""
        return {}


SIMULATOR_REWARD = SimulatorReward()


def with_rewards(batch: RolloutBatch, reward: Tensor) -> RolloutBatch:
    """Replace the rewards of rows, float32 [B], and with them the episodes' sums, which GRPO scores."""
    if reward.shape != batch.reward.shape:
        raise ValueError(f"{tuple(batch.reward.shape)} rewards are needed, got {tuple(reward.shape)}")
    sums = torch.zeros(len(batch.episodes), dtype=torch.float64).index_add(0, batch.episode, reward.double())
    episodes = [replace(each, reward=total) for each, total in zip(batch.episodes, sums.tolist(), strict=True)]
    return replace(batch, reward=reward, episodes=episodes)
