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
    """An episode in an env: its rows so far and what it earned.

    success: the goal was reached, alone or with help.
    """

    spec: EpisodeSpec
    rows: list[tuple[StepRecord, int]] = field(default_factory=list)
    reward: float = 0.0
    success: bool = False
    num_decisions: int = 0
    num_steps: int = 0
    human_steps: int = 0
    final_images: torch.Tensor | None = None
    """What it shows after its last step, as of `Trajectory`."""

    def ended(self, *, terminated: bool, final_value: float = 0.0) -> Trajectory:
        """Finish the episode; terminated: by its task and not by the horizon."""
        outcome = EpisodeResult(
            spec=self.spec,
            success=self.success and not self.human_steps,
            terminated=terminated,
            truncated=not terminated,
            reward=self.reward,
            num_decisions=self.num_decisions,
            num_steps=self.num_steps,
            final_value=final_value,
            human_steps=self.human_steps,
            helped_success=self.success and self.human_steps > 0,
        )
        return Trajectory(outcome, self.rows, self.final_images)


def record_step(
    episodes: Sequence[ActiveEpisode], rows: Sequence[int], step: StepRecord, result: ChunkResult, *, keep: bool
) -> None:
    """Add a chunk that ran to its episodes; `episodes[row]` ran row `row`. keep: also the row itself."""
    reward, success = step.reward.tolist(), result.success.tolist()
    taken, human = result.steps_taken.tolist(), result.human.tolist()
    for row in rows:
        episode = episodes[row]
        if keep:
            episode.rows.append((step, row))
        episode.reward += reward[row]
        episode.success |= success[row]
        episode.num_decisions += 1
        episode.num_steps += taken[row]
        episode.human_steps += human[row]


def decision_rng(episodes: Sequence[ActiveEpisode]) -> DecisionRng:
    """The random numbers of the next decision of each episode."""
    seeds = np.array([episode.spec.seed for episode in episodes], dtype=np.int64)
    return DecisionRng(seeds, np.array([episode.num_decisions for episode in episodes], dtype=np.int64))


def executed_terms(result: ChunkResult, chunk_len: int, terms_per_step: int) -> torch.Tensor:
    """bool [N, L]: log-prob terms of control steps that ran before the episode ended or a person took over."""
    ran = torch.arange(chunk_len) < (result.steps_taken - result.human)[:, None]
    return ran.repeat_interleave(terms_per_step, dim=1)
