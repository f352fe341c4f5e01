"""Which task and initial state an episode begins from, by how often earlier batches solved them.

p being the probability of success, single episodes (PPO) are drawn in proportion to 1 - p (prioritized sampling: Kimi
k1.5, 2025), groups (GRPO) in proportion to p (1 - p) (sampling for learnability: Rutherford et al. 2024), half the
chance that two of their episodes differ: a group without contrast teaches nothing. What batch b draws depends only on
batches that ended before b, so it does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.rng import philox
from embodied_rl.types import Array

UNIFORM_SHARE = 0.25
"""Default of the share of groups that are drawn uniformly."""
MEMORY = 0.8
"""Weight of the earlier batches when a further one is counted: about five batches are remembered."""
STATE_PRIOR = 4.0
"""An initial state begins with the success rate of its task, as if seen in so many episodes."""
# Philox streams: 1 to 4 are the sampler's, 5 and 6 the learner's.
_START, _STATE = 7, 8
_GOLDEN = 0.6180339887498949

Weights = Literal["failure", "contrast"]
"""What tasks and initial states are drawn in proportion to: failure is 1 - p, contrast is p (1 - p)."""


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """How a group of a batch ended: `successes` of `episodes` that began from `init_state` of `task`."""

    task: str
    init_state: int
    successes: int
    episodes: int


def expected(counts: Array, weights: Weights) -> Array:
    """Expected weight of each initial state of a task; float64 [S].

    p of the task has the prior Beta(1, 1); p of a state has the prior Beta(k m, k (1 - m)), m being the mean of the
    task's posterior and k `STATE_PRIOR`. Under Beta(a, b), E[1 - p] is b / (a + b), and E[p (1 - p)] that times
    a / (a + b + 1).

    Args:
        counts: float64 [S, 2], successes and episodes of each state.
        weights: of what.
    """
    successes, episodes = counts.sum(axis=0)
    mean = (1.0 + successes) / (2.0 + episodes)
    a = STATE_PRIOR * mean + counts[:, 0]
    b = STATE_PRIOR * (1.0 - mean) + counts[:, 1] - counts[:, 0]
    failure = b / (a + b)
    return failure if weights == "failure" else failure * a / (a + b + 1.0)


def probabilities(weight: Array, uniform_share: float) -> Array:
    """`weight` (float64 [n], positive) made to add up to 1, mixed with the uniform distribution."""
    return uniform_share / len(weight) + (1.0 - uniform_share) * weight / weight.sum()


class SuccessTracker:
    """Successes and episodes by task and initial state, older batches counting less.

    Args:
        tasks: initial states by task name.
        uniform_share: share of the groups that are drawn uniformly over tasks, and of a task's over its states.
        weights: what the others are drawn in proportion to.
        counts: by task, float64 [S, 2]; None: nothing was seen.

    Attributes:
        task_probability: float64 [T].
        state_probability: float64 [S] for each of the T tasks.

    Example:
        >>> tracker = SuccessTracker({"reach": [0, 1], "lift": [0, 1]}, 0.25, "contrast")
        >>> tracker.after([GroupOutcome("reach", 0, 8, 8), GroupOutcome("lift", 1, 3, 8)]).task_probability
        array([0.27..., 0.72...])
    """

    def __init__(
        self,
        tasks: Mapping[str, Sequence[int]],
        uniform_share: float,
        weights: Weights,
        counts: Sequence[Array] | None = None,
    ) -> None:
        self._tasks = tasks
        self._uniform_share = uniform_share
        self._weights: Weights = weights
        self.counts = [np.zeros((len(states), 2)) for states in tasks.values()] if counts is None else list(counts)
        by_task = [expected(count, weights) for count in self.counts]
        self.state_probability = [probabilities(weight, uniform_share) for weight in by_task]
        self.task_probability = probabilities(np.array([weight.mean() for weight in by_task]), uniform_share)

    def after(self, outcomes: Sequence[GroupOutcome]) -> SuccessTracker:
        """The tracker that has seen a further batch."""
        counts = [MEMORY * count for count in self.counts]
        places = {name: place for place, name in enumerate(self._tasks)}
        for outcome in outcomes:
            row = list(self._tasks[outcome.task]).index(outcome.init_state)
            counts[places[outcome.task]][row] += (outcome.successes, outcome.episodes)
        return SuccessTracker(self._tasks, self._uniform_share, self._weights, counts)


class AdaptiveDraws:
    """Draws task and initial state of each group from what the batches before showed.

    Tasks follow a golden-ratio sequence from a random start, so that any stretch of groups has each task about as often
    as its probability says; initial states are drawn independently.

    Args:
        seed: of the run.
        tasks: initial states by task name.
        weights: what tasks and states are drawn in proportion to.
        uniform_share: as of `SuccessTracker`: no task is drawn less often than this share of its uniform part.

    Example:
        >>> draws = AdaptiveDraws(seed=0, tasks={"reach": [0, 1], "lift": [0, 1]}, weights="failure")
        >>> task, init_state = draws.draw(group=0, closed=0)
    """

    def __init__(
        self, seed: int, tasks: Mapping[str, Sequence[int]], weights: Weights, uniform_share: float = UNIFORM_SHARE
    ) -> None:
        self._seed = seed
        self._tasks = {name: list(states) for name, states in tasks.items()}
        self._names = list(self._tasks)
        self._weights: Weights = weights
        self._uniform_share = uniform_share
        self._start = float(philox(seed, _START).random())
        # By how many batches had ended.
        self._trackers = {0: SuccessTracker(self._tasks, uniform_share, weights)}

    def draw(self, group: int, closed: int) -> tuple[str, int]:
        """Task and initial state of a group, from what the first `closed` batches showed."""
        known = [count for count in self._trackers if count <= closed]
        tracker = self._trackers[max(known) if known else min(self._trackers)]
        task = _pick(tracker.task_probability, (self._start + group * _GOLDEN) % 1.0)
        state = _pick(tracker.state_probability[task], float(philox(self._seed, _STATE, group).random()))
        return self._names[task], self._tasks[self._names[task]][state]

    def close_batch(self, batch: int, outcomes: Sequence[GroupOutcome], lag: int) -> None:
        """Count batch `batch`, the next one, as ended. Later draws are from at most `lag` batches fewer."""
        newest = self._trackers[max(self._trackers)]
        self._trackers[batch + 1] = newest.after(outcomes)
        for count in [count for count in self._trackers if count < batch + 1 - lag]:
            del self._trackers[count]

    def state_dict(self) -> dict[str, Any]:
        """JSON of what the batches so far showed."""
        trackers = {str(count): [x.tolist() for x in tracker.counts] for count, tracker in self._trackers.items()}
        return {"weights": self._weights, "uniform_share": self._uniform_share, "trackers": trackers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raise UserError if it was drawn from with other weights or another uniform share."""
        if state.get("weights") != self._weights:
            raise UserError("the checkpoint's episodes were drawn by other weights: begin a new run.")
        if state["uniform_share"] != self._uniform_share:
            raise UserError("the checkpoint's episodes have another uniform_share; resume with the run's own config.")
        self._trackers = {
            int(count): SuccessTracker(
                self._tasks, self._uniform_share, self._weights, [np.array(x, np.float64) for x in counts]
            )
            for count, counts in state["trackers"].items()
        }


def _pick(probability: Array, uniform: float) -> int:
    """The index into `probability` (float64 [n]) that `uniform` in [0, 1) falls on."""
    return min(int(np.searchsorted(probability.cumsum(), uniform, side="right")), len(probability) - 1)
