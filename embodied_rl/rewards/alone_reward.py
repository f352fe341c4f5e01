"""Rewards by a judge alone: it says at the end of an episode whether the task is done, and nothing else pays."""

from __future__ import annotations

from dataclasses import replace

import torch

from embodied_rl.rewards.base import Judge, with_rewards
from embodied_rl.rewards.card import HIGH
from embodied_rl.rewards.progress_reward import differences
from embodied_rl.types import EpisodeResult, RolloutBatch


class AloneReward:
    """Replaces the rewards of an episode by 1 at its last decision, or 0, and the differences of `ProgressReward`.

    The 1 is paid where the judge sees the task done in the pictures after the last step, with a probability of `HIGH`
    or more; where it is not known whether it is done, 0. The differences are added to every episode, so that no term
    depends on how it ends. They sum to 0: an episode's discounted return from the start is gamma^(T-1), T being its
    decisions, or 0, however much it looked like progress. They move credit between decisions and add none.

    The simulator's rewards and success flags change no reward: they are compared, for `drain`.

    Args:
        gamma: the algorithm's discount a decision.
        weight: of the differences.
        has_success: whether the simulator says what succeeded, as of `EnvInfo`.

    Example:
        >>> model, _ = load_progress(Path("reward"))
        >>> reward = AloneReward(model, gamma=0.99, weight=0.5, has_success=True)
        >>> batch = reward.relabel(batch)
        >>> reward.drain()["reward/alone_false_positives"]
        0.015625
    """

    needs_final_images = True

    def __init__(self, judge: Judge, *, gamma: float, weight: float, has_success: bool) -> None:
        self._judge, self._gamma, self._weight = judge, gamma, weight
        self._has_success = has_success
        self._episodes = self._unknown = self._done = self._false_positives = self._false_negatives = 0

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with the judge's rewards in place of the simulator's.

        One episode is judged at a time, so that its numbers do not depend on how a batch is cut into groups.

        Raises:
            ValueError: the batch has no final images.
        """
        if batch.final_images is None:
            raise ValueError("a judge alone needs the pictures after each episode's last step, and they were not kept")
        reward = torch.zeros_like(batch.reward)
        for number, episode in enumerate(batch.episodes):
            rows = torch.nonzero(batch.episode == number).flatten()
            words = [batch.instruction[row] for row in rows.tolist()]
            done = self._judge.done(batch.final_images[number : number + 1], words[-1:])
            progress = self._judge.progress(batch.images[rows], words)
            paid = self._weight * differences(progress, self._gamma)
            paid[-1] += self._count(done, progress, episode)
            reward[rows] = paid.to(reward.device)
        return with_rewards(replace(batch, final_images=None), reward)  # nobody looks at them again

    def drain(self) -> dict[str, float]:
        """How often the judge saw the task done, and how often the simulator says otherwise: shares of all episodes.

        A false positive is an episode that counts as done and failed, a false negative one that succeeded and does not.
        """
        found = {"reward/unknown_episodes": float(self._unknown)} | self._judge.drain()
        if self._episodes:
            found["reward/alone_done"] = self._done / self._episodes
        if self._episodes and self._has_success:
            wrong = self._false_positives + self._false_negatives
            found["reward/alone_agreement"] = 1 - wrong / self._episodes
            found["reward/alone_false_positives"] = self._false_positives / self._episodes
            found["reward/alone_false_negatives"] = self._false_negatives / self._episodes
        self._episodes = self._unknown = self._done = self._false_positives = self._false_negatives = 0
        return found

    def _count(self, probability: torch.Tensor, progress: torch.Tensor, episode: EpisodeResult) -> bool:
        """Whether an episode is done, by the probabilities of its last pictures; counted."""
        done = bool(((probability >= HIGH) & probability.isfinite()).all())
        self._episodes += 1
        self._unknown += not bool(probability.isfinite().all() and progress.isfinite().all())
        self._done += done
        self._false_positives += done and not episode.success
        self._false_negatives += episode.success and not done
        return done
