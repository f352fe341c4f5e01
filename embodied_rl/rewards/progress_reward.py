"""Rewards from a judge's progress: differences of a potential beside the simulator's rewards."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from embodied_rl.rewards.base import Judge, with_rewards
from embodied_rl.types import RolloutBatch


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

        One episode is judged at a time, so that its numbers do not depend on how a batch is cut into groups.

        Raises:
            ValueError: the learner bootstraps, and the batch has no final images.
        """
        if self.needs_final_images and batch.final_images is None:
            raise ValueError("the progress after a last step needs the pictures after it, and they were not kept")
        reward = batch.reward.clone()
        for number, episode in enumerate(batch.episodes):
            rows = torch.nonzero(batch.episode == number).flatten()
            words, images = [batch.instruction[row] for row in rows.tolist()], batch.images[rows]
            goes_on = self.needs_final_images and not episode.terminated
            if goes_on:
                assert batch.final_images is not None
                words = [*words, words[-1]]
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
