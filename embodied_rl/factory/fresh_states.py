"""Initial states of training that are drawn for a run, where a suite can have further ones."""

from __future__ import annotations

import math

from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.suites import Tasks, of_scenes

_APART = 5_000
"""From the seeds with which `collect` draws those of demonstrations, which a user counts from 0 too."""
_SEEDS = 10_000


def with_fresh_states(tasks: Tasks, config: TrainConfig) -> Tasks:
    """The tasks with as many initial states to train on as the run has episodes; those that are held out stay.

    A run that goes on for longer has the same ones, and more.

    Raises:
        UserError: the suite can't have more.
    """
    from embodied_rl.sim import tabletop

    if not tasks.suite.draws_states:
        raise UserError(f"--train-states fresh: suite '{tasks.suite.name}' has no fresh initial states; leave it out.")
    episodes = config.iterations * config.rollout.episodes_per_iteration
    count, seed = math.ceil(episodes / len(tasks.scenes)), (config.seed + _APART) % _SEEDS
    return of_scenes(tasks.suite, [tabletop.with_further_states(task, count, seed) for task in tasks.scenes])
