"""Rewards from a progress model: differences of a potential, in the episodes that succeed."""

from __future__ import annotations

import torch

from embodied_rl.rewards.base import with_rewards
from embodied_rl.rewards.progress import ProgressModel
from embodied_rl.types import RolloutBatch


class ProgressReward:
    """Adds to decision t of an episode F_t = weight * gate * (gamma * phi(t+1) - phi(t)).

    phi(t) is the progress that the model sees before decision t, less that before the first; after the last decision
    it is 0. The discounted sum of F over an episode is therefore 0: each episode's return from its start stays what the
    simulator gave, and with it the best policy (Ng, Harada and Russell 1999, "Policy invariance under reward
    transformations"; the end as in Grzes 2017, "Reward shaping in episodic reinforcement learning").

    gate is 1 where the simulator says that the episode succeeded, else 0: an episode that fools the model into seeing
    progress and fails gets none of it (after gated reward accumulation, Sun et al. 2025, which counts the rewards of
    steps only where the outcome's reward reaches a threshold).

    Args:
        gamma: the algorithm's discount a decision.

    Example:
        >>> model, _ = load_progress(Path("reward"))
        >>> batch = ProgressReward(model, gamma=0.99, weight=0.5).relabel(batch)
    """

    def __init__(self, model: ProgressModel, *, gamma: float, weight: float) -> None:
        self._model, self._gamma, self._weight = model, gamma, weight

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with the differences added.

        The model judges one episode at a time, so that its numbers do not depend on how a batch is cut into groups.
        """
        added = torch.zeros_like(batch.reward)
        for number, episode in enumerate(batch.episodes):
            if not episode.success:
                continue
            rows = torch.nonzero(batch.episode == number).flatten()
            if len(rows):
                words = [batch.instruction[row] for row in rows.tolist()]
                progress, _ = self._model.judge(batch.images[rows], words)
                added[rows] = self._weight * differences(progress.to(added.device), self._gamma)
        return with_rewards(batch, batch.reward + added)


def differences(progress: torch.Tensor, gamma: float) -> torch.Tensor:
    """gamma * phi(t+1) - phi(t), float32 [T], of progress [T] less its first; 0 after the last."""
    potential = torch.cat([progress - progress[0], progress.new_zeros(1)])
    return gamma * potential[1:] - potential[:-1]
