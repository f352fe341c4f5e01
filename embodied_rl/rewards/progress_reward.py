"""Rewards from a judge's progress: differences of a potential, in the episodes that succeed."""

from __future__ import annotations

import math

import torch

from embodied_rl.rewards.base import Judge, with_rewards
from embodied_rl.rewards.card import HIGH
from embodied_rl.types import EpisodeResult, RolloutBatch


class ProgressReward:
    """Adds to decision t of an episode F_t = weight * gate * (gamma * phi(t+1) - phi(t)).

    phi(t) is the progress that the judge sees before decision t, less that before the first; after the last decision
    it is 0. The discounted sum of F over an episode is therefore 0: each episode's return from its start stays what the
    simulator gave, and with it the best policy (Ng, Harada and Russell 1999, "Policy invariance under reward
    transformations"; the end as in Grzes 2017, "Reward shaping in episodic reinforcement learning").

    gate is 1 where the simulator says that the episode succeeded, else 0: an episode that fools the judge into seeing
    progress and fails gets none of it (after gated reward accumulation, Sun et al. 2025, which counts the rewards of
    steps only where the outcome's reward reaches a threshold).

    Alone, the simulator's rewards are left out, and gate is 1 where the judge sees the task done in the picture before
    the last decision. Such an episode pays 1 at its end, besides the differences.

    An episode whose progress the judge does not know gets no differences. Alone, one of which it does not know whether
    it is done gets nothing.

    Args:
        gamma: the algorithm's discount a decision.
        alone: learn from the judge alone.

    Example:
        >>> model, _ = load_progress(Path("reward"))
        >>> batch = ProgressReward(model, gamma=0.99, weight=0.5).relabel(batch)
    """

    def __init__(self, judge: Judge, *, gamma: float, weight: float, alone: bool = False) -> None:
        self._judge, self._gamma, self._weight, self._alone = judge, gamma, weight, alone
        self._episodes = self._unknown = self._done = self._fooled = 0

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with the differences added.

        One episode is judged at a time, so that its numbers do not depend on how a batch is cut into groups.
        """
        reward = torch.zeros_like(batch.reward) if self._alone else batch.reward.clone()
        for number, episode in enumerate(batch.episodes):
            rows = torch.nonzero(batch.episode == number).flatten()
            if len(rows):
                self._episodes += 1
                reward[rows] += self._added(batch, rows, episode).to(reward.device)
        return with_rewards(batch, reward)

    def drain(self) -> dict[str, float]:
        """Episodes whose judgement is not known, and the judge's metrics; alone, also what it takes for success.

        reward/done is the share of episodes that the judge sees done, reward/fooled that of all that it sees done while
        the simulator says that they failed.
        """
        count = max(1, self._episodes)
        found = {"reward/unknown_episodes": float(self._unknown)} | self._judge.drain()
        if self._alone:
            found |= {"reward/done": self._done / count, "reward/fooled": self._fooled / count}
        self._episodes = self._unknown = self._done = self._fooled = 0
        return found

    def _added(self, batch: RolloutBatch, rows: torch.Tensor, episode: EpisodeResult) -> torch.Tensor:
        """What one episode's rows get, float32 [T] on the CPU."""
        nothing = torch.zeros(len(rows))
        words = [batch.instruction[row] for row in rows.tolist()]
        if self._alone:
            done = float(self._judge.done(batch.images[rows[-1:]], words[-1:]))
            self._unknown += math.isnan(done)
            gate = done >= HIGH
            self._done += gate
            self._fooled += gate and not episode.success
        else:
            gate = episode.success
        if not gate:
            return nothing
        progress = self._judge.progress(batch.images[rows], words)
        known = not bool(progress.isnan().any())
        self._unknown += not known
        added = self._weight * differences(progress, self._gamma) if known else nothing
        if self._alone:
            added[-1] += 1
        return added


def differences(progress: torch.Tensor, gamma: float) -> torch.Tensor:
    """gamma * phi(t+1) - phi(t), float32 [T], of progress [T] less its first; 0 after the last."""
    potential = torch.cat([progress - progress[0], progress.new_zeros(1)])
    return gamma * potential[1:] - potential[:-1]
