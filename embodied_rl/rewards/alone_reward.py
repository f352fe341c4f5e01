"""Rewards by a judge alone: it says at the end of an episode whether the task is done, and nothing else pays."""

from __future__ import annotations

from dataclasses import replace

import torch

from embodied_rl.rewards.base import Judge, with_rewards
from embodied_rl.rewards.card import HIGH
from embodied_rl.rewards.progress_reward import differences
from embodied_rl.types import EpisodeResult, RolloutBatch


class AloneReward:
    """Replaces the rewards of an episode by 1 at its last decision and the differences of `ProgressReward`, or by 0.

    They are paid where the judge sees the task done in the pictures after the last step, with a probability of `HIGH`
    or more. An episode that looks like progress and does not look done gets nothing (after gated reward accumulation,
    Sun et al. 2025, with the judge's own outcome as the gate). So its discounted return from the start is gamma^(T-1),
    T being its decisions, or 0: the differences move credit between decisions and add none.

    Where it is not known whether the task is done, the episode pays nothing; where only its progress is not known, it
    gets no differences. The simulator's rewards and success flags change no reward: they are compared, for `drain`.

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
            done = self._is_done(batch.final_images[number : number + 1], words[-1:], episode)
            if done:
                reward[rows] = self._paid(batch.images[rows], words).to(reward.device)
        return with_rewards(replace(batch, final_images=None), reward)  # nobody looks at them again

    def drain(self) -> dict[str, float]:
        """How often the judge saw the task done, and how often the simulator says otherwise: shares of all episodes.

        A false positive is an episode that is paid and failed, a false negative one that succeeded and is not paid.
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

    def _is_done(self, image: torch.Tensor, words: list[str], episode: EpisodeResult) -> bool:
        """Whether an episode is paid, by its last pictures [1, V, H, W, 3]; counted."""
        probability = self._judge.done(image, words)
        done = bool((probability >= HIGH).all())  # NaN is not
        self._episodes += 1
        self._unknown += bool(probability.isnan().any())
        self._done += done
        self._false_positives += done and not episode.success
        self._false_negatives += episode.success and not done
        return done

    def _paid(self, images: torch.Tensor, words: list[str]) -> torch.Tensor:
        """The rewards of an episode that is done, float32 [T] on the CPU."""
        progress = self._judge.progress(images, words)
        if progress.isnan().any():
            self._unknown += 1
            paid = torch.zeros(len(words))
        else:
            paid = self._weight * differences(progress, self._gamma)
        paid[-1] += 1
        return paid
