"""An episode while it runs, and what a decision needs to know of it: shared by the ways to drive envs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.observation_pool import StepRecord, Trajectory
from embodied_rl.types import Array, ChunkResult, EpisodeResult, EpisodeSpec

NO_CRITIC = "the algorithm needs a critic, and the policy returned no value; give it a value head."


@dataclass(slots=True)
class ActiveEpisode:
    """An episode in a env: its rows so far and what it earned."""

    spec: EpisodeSpec
    rows: list[tuple[StepRecord, int]] = field(default_factory=list)
    reward: float = 0.0
    success: bool = False
    num_decisions: int = 0
    num_steps: int = 0

    def account(self, result: ChunkResult, round_: StepRecord, row: int, *, record: bool) -> None:
        """Add the chunk that row `row` of a round ran; record: keep that row."""
        if record:
            self.rows.append((round_, row))
        self.reward += float(round_.reward[row])
        self.success |= bool(result.success[row])
        self.num_decisions += 1
        self.num_steps += int(result.steps_taken[row])

    def ended(self, *, terminated: bool, final_value: float = 0.0) -> Trajectory:
        """The episode, finished; terminated: by its task and not by the horizon."""
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
        return Trajectory(outcome, self.rows)


def decision_rng(episodes: Sequence[ActiveEpisode]) -> DecisionRng:
    """The random numbers of the next decision of each episode."""
    seeds = np.array([episode.spec.seed for episode in episodes], dtype=np.int64)
    return DecisionRng(seeds, np.array([episode.num_decisions for episode in episodes], dtype=np.int64))


def executed_terms(steps_taken: Array, chunk_len: int, terms_per_step: int) -> Array:
    """bool [N, L]: terms of control steps that ran before the episode ended."""
    ran = np.arange(chunk_len) < steps_taken[:, None]
    return np.repeat(ran, terms_per_step, axis=1)
