"""Rewards by a judge of pictures: progress beside the simulator's rewards, or success and progress in their place."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from embodied_rl.reward_model import with_rewards
from embodied_rl.rewards.card import HIGH
from embodied_rl.rewards.judge import Judge
from embodied_rl.types import EpisodeResult, RolloutBatch


class ProgressReward:
    """Adds to decision t of every episode F_t = weight * (gamma * phi(t+1) - phi(t)).

    phi(t) is the progress that the judge sees before decision t, less the first that it saw. After the last decision it
    is 0; where `bootstrap` has the learner go on from an episode that ran out of time, it is that of the last picture.

    This is potential-based reward shaping (Ng, Harada and Russell 1999, "Policy invariance under reward
    transformations"; the end as in Grzes 2017, "Reward shaping in episodic reinforcement learning"). From decision t on
    the discounted sum of F is -weight * phi(t), which no later action changes: every decision's advantage stays that of
    the simulator's rewards, and with it the policy's gradient. Over a whole episode the sum is 0, so looking like
    progress gains nothing: what is paid on the way is taken back at the end.

    No term may depend on how the episode ends. Counting them in successful episodes only, say, would have every
    decision that decides success pay -weight * phi(t) for it.

    Args:
        gamma: the algorithm's discount a decision.
        bootstrap: whether it counts on the critic's value at the end of an episode that ran out of time.

    Example:
        >>> model, _ = load_progress(Path("reward"))
        >>> batch = ProgressReward(model, gamma=0.99, weight=0.5).relabel(batch)
    """

    def __init__(self, judge: Judge, *, gamma: float, weight: float, bootstrap: bool = False) -> None:
        self._judge, self._gamma, self._weight = judge, gamma, weight
        self.needs_final_images = bootstrap
        self._unknown = 0

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with the differences added.

        Raises:
            ValueError: the learner bootstraps, and the batch has no final images.
        """
        if self.needs_final_images and batch.final_images is None:
            raise ValueError("the progress after a last step needs the pictures after it, and they were not kept")
        reward = batch.reward.clone()
        for number, episode, rows, said in _episodes(batch):
            images, words = batch.images[rows], said
            goes_on = self.needs_final_images and not episode.terminated
            if goes_on:
                assert batch.final_images is not None
                words = [*said, said[-1]]
                images = torch.cat([images, batch.final_images[number : number + 1].to(images.device)])
            progress = self._judge.progress(images, words)
            self._unknown += not bool(progress.isfinite().all())
            reward[rows] += self._weight * differences(progress, self._gamma, goes_on=goes_on).to(reward.device)
        return with_rewards(replace(batch, final_images=None), reward)  # nobody looks at them again

    def drain(self) -> dict[str, float]:
        """Episodes whose progress is not known throughout, and the judge's metrics."""
        found = {"reward/unknown_episodes": float(self._unknown)} | self._judge.drain()
        self._unknown = 0
        return found


class SuccessReward:
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
        >>> reward = SuccessReward(model, gamma=0.99, weight=0.5, has_success=True)
        >>> batch = reward.relabel(batch)
        >>> reward.drain()["reward/false_positives"]
        0.015625
    """

    needs_final_images = True

    def __init__(self, judge: Judge, *, gamma: float, weight: float, has_success: bool) -> None:
        self._judge, self._gamma, self._weight = judge, gamma, weight
        self._has_success = has_success
        self._episodes = self._unknown = self._done = self._false_positives = self._false_negatives = 0

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        """The batch with the judge's rewards in place of the simulator's.

        Raises:
            ValueError: the batch has no final images.
        """
        if batch.final_images is None:
            raise ValueError("success needs the pictures after each episode's last step, and they were not kept")
        reward = torch.zeros_like(batch.reward)
        for number, episode, rows, words in _episodes(batch):
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
            found["reward/done"] = self._done / self._episodes
        if self._episodes and self._has_success:
            wrong = self._false_positives + self._false_negatives
            found["reward/agreement"] = 1 - wrong / self._episodes
            found["reward/false_positives"] = self._false_positives / self._episodes
            found["reward/false_negatives"] = self._false_negatives / self._episodes
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


def _episodes(batch: RolloutBatch) -> Iterator[tuple[int, EpisodeResult, torch.Tensor, list[str]]]:
    """Number, result, rows and instructions of each episode.

    One is judged at a time, so that its numbers do not depend on how a batch is cut into groups.
    """
    for number, episode in enumerate(batch.episodes):
        rows = torch.nonzero(batch.episode == number).flatten()
        yield number, episode, rows, [batch.instruction[row] for row in rows.tolist()]


def differences(progress: torch.Tensor, gamma: float, *, goes_on: bool = False) -> torch.Tensor:
    """gamma * phi(t+1) - phi(t) of an episode's progress less its first.

    Where progress is not known (not finite), phi stays what it was last, and is 0 before the first that is known: an
    episode left out for what came later would bias its earlier decisions.

    Args:
        progress: [T], before each decision; 0 follows. goes_on: [T+1], with that after the last decision.

    Returns:
        [T], of the dtype of `progress`.
    """
    first, held = math.nan, [0.0]
    for value in progress.tolist():
        first = value if math.isnan(first) and math.isfinite(value) else first
        held.append(value - first if math.isfinite(value) else held[-1])
    potential = progress.new_tensor(held[1:] if goes_on else [*held[1:], 0.0])
    return gamma * potential[1:] - potential[:-1]
