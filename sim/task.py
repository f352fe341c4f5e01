"""What a task is in every simulator: a name, an instruction, a time limit and initial states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from embodied_rl.types import Array

SEEDED_TRAIN, SEEDED_HELDOUT = range(4096), range(4096, 4196)
"""Initial states of tasks that begin from a seed: rows to train on, and rows that training never sees."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One task; what it takes to simulate it is added by a subclass in the simulator's folder.

    Args:
        name: 'suite/short_name', unique in an environment.
        suite: the benchmark that the task belongs to.
        instruction: what the policy is told.
        max_episode_steps: control steps after which an episode is truncated.
        init_states: [S, ...], one initial state a row, in the simulator's own form.
        train_states, heldout_states: rows of `init_states` for training and for evaluation; they never overlap.

    Example:
        task = load_suite("tabletop_goal")[0]
        spec = EpisodeSpec(0, task.name, task.train_states[0], seed=7)
    """

    name: str
    suite: str
    instruction: str
    max_episode_steps: int
    init_states: Array
    train_states: Sequence[int]
    heldout_states: Sequence[int]
