"""One update over shuffled minibatches of rows, for a batch that is complete."""

from __future__ import annotations

import numpy as np
import torch

from embodied_rl.algorithms.base import Rows
from embodied_rl.learner.off_policy import ess_ratio
from embodied_rl.learner.optimizer_step import OptimizerStep
from embodied_rl.learner.row_selection import RowSelection
from embodied_rl.rng import RunStream, philox
from embodied_rl.types import RolloutBatch


def update_by_rows(
    step: OptimizerStep, batch: RolloutBatch, selection: RowSelection, seed: int, iteration: int
) -> dict[str, float]:
    """Take one step per minibatch of about `config.minibatch_size` rows, and return metrics: means over the steps.

    Of each minibatch about `selection.share` of the rows are learned from.
    """
    config, algorithm = step.config, step.algorithm
    assert config.minibatch_size is not None, "LearnerConfig sees to it"
    weight, metrics = algorithm.prepare(batch, step.model.terms_per_step)
    sums: dict[str, float] = {}
    steps = learned = 0
    for epoch in range(algorithm.epochs):
        taken, factor = selection.take(batch, iteration, epoch, by_group=False)
        # Of all rows, not of those that are taken: `row_share` makes steps cheaper, not fewer.
        parts = min(len(taken), max(1, round(len(batch) / config.minibatch_size)))
        # Weights add up to 1 over the batch; so they do, on average, over each of its minibatches.
        unit_weight, row_weight = weight * parts * factor[:, None], factor * (parts / len(batch))
        learned += len(taken)
        # Of the run's seed: alike on all ranks.
        order = philox(seed, RunStream.SHUFFLE, iteration, epoch).permutation(len(taken))
        for part, rows in enumerate(np.array_split(order, parts)):
            index = taken[torch.from_numpy(rows)]
            gradients = step.begin(iteration, check_ratio=epoch == 0 and part == 0)  # later the policy has moved
            own = step.collectives.own(batch, index).split(config.microbatch_size)
            gradients.begin(
                [
                    (Rows(batch, micro, unit_weight[micro], row_weight[micro]), counts)
                    for micro, counts in step.collectives.pad(batch, index, config.microbatch_size, own)
                ]
            )
            totals = step.collect(gradients, iteration)
            totals |= step.apply(batch, index, (iteration, steps), ess_ratio([batch], index))
            steps += 1
            for name, value in totals.items():
                sums[name] = sums.get(name, 0.0) + value
    metrics |= {f"train/{name}": value / steps for name, value in sums.items()}
    return metrics | {"train/num_samples": learned / algorithm.epochs, "train/steps": float(steps)}
