"""Which task and initial state an episode begins from, by how often earlier batches solved them.

Episodes are drawn in proportion to 1 - p, p being the probability of success (prioritized sampling: Kimi k1.5, 2025).
What batch b draws depends only on batches that ended before b, so it does not depend on timing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.rng import RunStream, philox
from embodied_rl.types import Array, EpisodeResult

UNIFORM_SHARE = 0.25
"""Default of the share of episodes that are drawn uniformly."""
MEMORY = 0.8
"""Weight of the earlier batches when a further one is counted: about five batches are remembered."""
STATE_PRIOR = 4.0
"""An initial state begins with the success rate of its task, as if seen in so many episodes."""
_GOLDEN = 0.6180339887498949


def failure_rate(counts: Array) -> Array:
    """Expected probability of failure from each initial state of a task; float64 [S].

    p of the task has the prior Beta(1, 1); p of a state has the prior Beta(k m, k (1 - m)), m being the mean of the
    task's posterior and k `STATE_PRIOR`. Under Beta(a, b), E[1 - p] is b / (a + b).

    Args:
        counts: float64 [S, 2], successes and episodes of each state.
    """
    successes, episodes = counts.sum(axis=0)
    mean = (1.0 + successes) / (2.0 + episodes)
    a = STATE_PRIOR * mean + counts[:, 0]
    b = STATE_PRIOR * (1.0 - mean) + counts[:, 1] - counts[:, 0]
    return b / (a + b)


def probabilities(weight: Array, uniform_share: float) -> Array:
    """`weight` (float64 [n], positive) made to add up to 1, mixed with the uniform distribution."""
    return uniform_share / len(weight) + (1.0 - uniform_share) * weight / weight.sum()


class SuccessTracker:
    """Successes and episodes by task and initial state, older batches counting less.

    Args:
        tasks: initial states by task name.
        uniform_share: share of the episodes that are drawn uniformly over tasks, and of a task's over its states.
        counts: by task, float64 [S, 2]; None: nothing was seen.

    Attributes:
        task_probability: float64 [T].
        state_probability: float64 [S] for each of the T tasks.

    Example:
        >>> counts = [np.array([[8, 8], [0, 0]]), np.array([[0, 0], [3, 8]])]
        >>> SuccessTracker({"reach": [0, 1], "lift": [0, 1]}, 0.25, counts).task_probability
        array([0.19..., 0.80...])
    """

    def __init__(
        self, tasks: Mapping[str, Sequence[int]], uniform_share: float, counts: Sequence[Array] | None = None
    ) -> None:
        self._tasks = tasks
        self._uniform_share = uniform_share
        self.counts = [np.zeros((len(states), 2)) for states in tasks.values()] if counts is None else list(counts)
        by_task = [failure_rate(count) for count in self.counts]
        self.state_probability = [probabilities(weight, uniform_share) for weight in by_task]
        self.task_probability = probabilities(np.array([weight.mean() for weight in by_task]), uniform_share)

    def after(self, results: Sequence[EpisodeResult]) -> SuccessTracker:
        """The tracker that has seen a further batch."""
        counts = [MEMORY * count for count in self.counts]
        places = {name: place for place, name in enumerate(self._tasks)}
        for result in results:
            row = list(self._tasks[result.spec.task]).index(result.spec.init_state)
            counts[places[result.spec.task]][row] += (result.success, 1)
        return SuccessTracker(self._tasks, self._uniform_share, counts)


class AdaptiveDraws:
    """Draws task and initial state of each episode from what the batches before showed.

    Tasks follow a golden-ratio sequence from a random start, so that any stretch of episodes has each task about as
    often as its probability says; initial states are drawn independently.

    Args:
        seed: of the run.
        tasks: initial states by task name.
        uniform_share: as of `SuccessTracker`: no task is drawn less often than this share of its uniform part.

    Example:
        >>> draws = AdaptiveDraws(seed=0, tasks={"reach": [0, 1], "lift": [0, 1]})
        >>> task, init_state = draws.draw(group=0, closed=0)
    """

    def __init__(self, seed: int, tasks: Mapping[str, Sequence[int]], uniform_share: float = UNIFORM_SHARE) -> None:
        self._seed = seed
        self._tasks = {name: list(states) for name, states in tasks.items()}
        self._names = list(self._tasks)
        self._uniform_share = uniform_share
        self._start = float(philox(seed, RunStream.ADAPTIVE_START).random())
        # By how many batches had ended.
        self._trackers = {0: SuccessTracker(self._tasks, uniform_share)}

    def draw(self, group: int, closed: int) -> tuple[str, int]:
        """Task and initial state of an episode, from what the first `closed` batches showed."""
        known = [count for count in self._trackers if count <= closed]
        tracker = self._trackers[max(known) if known else min(self._trackers)]
        task = _pick(tracker.task_probability, (self._start + group * _GOLDEN) % 1.0)
        state = _pick(
            tracker.state_probability[task], float(philox(self._seed, RunStream.ADAPTIVE_STATE, group).random())
        )
        return self._names[task], self._tasks[self._names[task]][state]

    def close_batch(self, batch: int, results: Sequence[EpisodeResult], lag: int) -> None:
        """Count batch `batch`, the next one, as ended. Later draws are from at most `lag` batches fewer."""
        newest = self._trackers[max(self._trackers)]
        self._trackers[batch + 1] = newest.after(results)
        # No later group is drawn from them.
        for count in [count for count in self._trackers if count < batch + 1 - lag]:
            del self._trackers[count]

    def state_dict(self) -> dict[str, Any]:
        """JSON of what the batches so far showed."""
        trackers = {str(count): [x.tolist() for x in tracker.counts] for count, tracker in self._trackers.items()}
        return {"uniform_share": self._uniform_share, "trackers": trackers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`; raise UserError if it was drawn from otherwise."""
        if state["uniform_share"] != self._uniform_share:
            raise UserError("the checkpoint's episodes have another uniform_share; resume with the run's own config.")
        self._trackers = {
            int(count): SuccessTracker(self._tasks, self._uniform_share, [np.array(x, np.float64) for x in counts])
            for count, counts in state["trackers"].items()
        }


def _pick(probability: Array, uniform: float) -> int:
    """The index into `probability` (float64 [n]) that `uniform` in [0, 1) falls on."""
    # The sum may be rounded below 1, and `uniform` lie between the two.
    return min(int(np.searchsorted(probability.cumsum(), uniform, side="right")), len(probability) - 1)
