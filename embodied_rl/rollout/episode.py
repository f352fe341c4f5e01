"""A running episode: its rows so far, the random numbers of its next decision, its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.observation_pool import StepRecord, Trajectory
from embodied_rl.types import ChunkResult, EpisodeResult, EpisodeSpec

NO_CRITIC = "the algorithm needs a critic, and the policy returned no value; give it a value head."


@dataclass(slots=True)
class ActiveEpisode:
    """An episode in an env: its rows so far and what it earned."""

    spec: EpisodeSpec
    rows: list[tuple[StepRecord, int]] = field(default_factory=list)
    reward: float = 0.0
    success: bool = False
    num_decisions: int = 0
    num_steps: int = 0
    final_images: torch.Tensor | None = None
    """What it shows after its last step, as of `Trajectory`."""

    def ended(self, *, terminated: bool, final_value: float = 0.0) -> Trajectory:
        """Finish the episode; terminated: by its task and not by the horizon."""
        outcome = EpisodeResult(
            spec=self.spec,
            success=self.success,
            terminated=terminated,
            truncated=not terminated,
            reward=self.reward,
            num_decisions=self.num_decisions,
            num_steps=self.num_steps,
            final_value=final_value,
        )
        return Trajectory(outcome, self.rows, self.final_images)


def record_step(
    episodes: Sequence[ActiveEpisode], rows: Sequence[int], step: StepRecord, result: ChunkResult, *, keep: bool
) -> None:
    """Add a chunk that ran to its episodes; `episodes[row]` ran row `row`. keep: also the row itself."""
    reward, success, taken = step.reward.tolist(), result.success.tolist(), result.steps_taken.tolist()
    for row in rows:
        episode = episodes[row]
        if keep:
            episode.rows.append((step, row))
        episode.reward += reward[row]
        episode.success |= success[row]
        episode.num_decisions += 1
        episode.num_steps += taken[row]


def decision_rng(episodes: Sequence[ActiveEpisode]) -> DecisionRng:
    """The random numbers of the next decision of each episode."""
    seeds = np.array([episode.spec.seed for episode in episodes], dtype=np.int64)
    return DecisionRng(seeds, np.array([episode.num_decisions for episode in episodes], dtype=np.int64))


def executed_terms(steps_taken: torch.Tensor, chunk_len: int, terms_per_step: int) -> torch.Tensor:
    """bool [N, L]: log-prob terms of control steps that ran before the episode ended."""
    ran = torch.arange(chunk_len) < steps_taken[:, None]
    return ran.repeat_interleave(terms_per_step, dim=1)
