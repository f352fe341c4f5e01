"""The contracts of reward models and of what they ask, and the one that leaves the simulator's rewards as they are."""

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


class Judge(Protocol):
    """Sees in pictures how far a task has come, and whether it is done.

    Example:
        >>> progress = judge.progress(images, instruction)  # of one episode
        >>> done = judge.done(images[-1:], instruction[-1:])
    """

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        """How far the task has come, float32 [T] on the CPU, in the T frames of one episode in time order.

        images: uint8 [T, V, H, W, 3]. NaN from where on it is not known.
        """
        ...

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        """The probability that the task is done, float32 [N] on the CPU, frame by frame; NaN where it is not known.

        images: uint8 [N, V, H, W, 3].
        """
        ...

    def drain(self) -> dict[str, float]:
        """Metrics of what was judged since the last call."""
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
