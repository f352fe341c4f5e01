"""Rewards from a judge's progress: differences of a potential, in the episodes that succeed."""

from __future__ import annotations

import torch

from embodied_rl.rewards.base import Judge, with_rewards
from embodied_rl.types import RolloutBatch


class ProgressReward:
    """Adds to decision t of an episode F_t = weight * gate * (gamma * phi(t+1) - phi(t)).

    phi(t) is the progress that the judge sees before decision t, less that before the first; after the last decision
    it is 0. The discounted sum of F over an episode is therefore 0: each episode's return from its start stays what the
    simulator gave, and with it the best policy (Ng, Harada and Russell 1999, "Policy invariance under reward
    transformations"; the end as in Grzes 2017, "Reward shaping in episodic reinforcement learning").

    gate is 1 where the simulator says that the episode succeeded, else 0: an episode that fools the judge into seeing
    progress and fails gets none of it (after gated reward accumulation, Sun et al. 2025, which counts the rewards of
    steps only where the outcome's reward reaches a threshold).

    An episode whose progress the judge does not know gets no differences.

    Args:
        gamma: the algorithm's discount a decision.

    Example:
        >>> model, _ = load_progress(Path("reward"))
        >>> batch = ProgressReward(model, gamma=0.99, weight=0.5).relabel(batch)
    """

    needs_final_images = False

    def __init__(self, judge: Judge, *, gamma: float, weight: float) -> None:
        self._judge, self._gamma, self._weight = judge, gamma, weight
        self._unknown = 0

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with the differences added.

        One episode is judged at a time, so that its numbers do not depend on how a batch is cut into groups.
        """
        reward = batch.reward.clone()
        for number, episode in enumerate(batch.episodes):
            rows = torch.nonzero(batch.episode == number).flatten()
            if not episode.success or not len(rows):
                continue
            words = [batch.instruction[row] for row in rows.tolist()]
            progress = self._judge.progress(batch.images[rows], words)
            if progress.isnan().any():
                self._unknown += 1
            else:
                reward[rows] += self._weight * differences(progress, self._gamma).to(reward.device)
        return with_rewards(batch, reward)

    def drain(self) -> dict[str, float]:
        """Successful episodes whose progress is not known, and the judge's metrics."""
        found = {"reward/unknown_episodes": float(self._unknown)} | self._judge.drain()
        self._unknown = 0
        return found


def differences(progress: torch.Tensor, gamma: float) -> torch.Tensor:
    """gamma * phi(t+1) - phi(t), float32 [T], of progress [T] less its first; 0 after the last."""
    potential = torch.cat([progress - progress[0], progress.new_zeros(1)])
    return gamma * potential[1:] - potential[:-1]
