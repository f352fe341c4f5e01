"""Further passes of the value head alone, over what it read when the policy acted (PPOConfig.critic_epochs).

A critic that teaches only itself needs no more of the network than its input, so that a pass costs next to nothing;
one pass with the policy leaves such a head far from what it could say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.optimizer_step import OptimizerStep
from embodied_rl.policy import CRITIC_INPUT
from embodied_rl.rng import philox
from embodied_rl.types import RolloutBatch

# Philox stream of these passes' permutations; 1 to 10 are the sampler's, the minibatches' and the selection's.
_CRITIC = 11


@dataclass(frozen=True, slots=True)
class CriticRows:
    """What this rank's rows of a batch have for the critic.

    read: what it read, float32 [n, ...]. returns: float32 [n]. place: int64 [n], where they stand among the batch's
    `total` rows.
    """

    read: Tensor
    returns: Tensor
    place: Tensor
    total: int


def critic_rows(batch: RolloutBatch, collectives: Collectives) -> CriticRows:
    """Those of a batch, or of a part of one, that is prepared."""
    assert batch.returns is not None, "prepare() first"
    own = collectives.own(batch, torch.arange(len(batch)))
    frame = own if batch.frame_row is None else batch.frame_row[own]
    return CriticRows(batch.replay[CRITIC_INPUT][frame], batch.returns[own], own, len(batch))


def join_rows(parts: Sequence[CriticRows]) -> CriticRows:
    """The rows of several parts of a batch, in order."""
    starts = np.cumsum([0, *(part.total for part in parts)])
    return CriticRows(
        torch.cat([part.read for part in parts]),
        torch.cat([part.returns for part in parts]),
        torch.cat([part.place + int(start) for part, start in zip(parts, starts, strict=False)]),
        int(starts[-1]),
    )


def update_critic(step: OptimizerStep, rows: CriticRows, batch: RolloutBatch, seed: int, iteration: int) -> None:
    """Take the algorithm's `critic_epochs` passes: steps on the mean squared error of the returns.

    There are as many minibatches as in a pass of the policy. batch: is dumped if a gradient is not finite.
    """
    value_of = step.model.traits.critic_value
    assert value_of is not None, "the config sees to it"
    device, own = next(step.model.parameters()).device, torch.full((rows.total,), -1)
    own[rows.place] = torch.arange(len(rows.place))
    parts = step.config.minibatches(rows.total, len(batch.episodes) // step.algorithm.group_size)
    for epoch in range(step.algorithm.critic_epochs):
        order = philox(seed, _CRITIC, iteration, epoch).permutation(rows.total)
        for drawn in np.array_split(order, parts):
            index = own[torch.from_numpy(drawn)]
            index = index[index >= 0]
            if len(index):  # each rank adds its share of the mean
                error = value_of(rows.read[index].to(device)) - rows.returns[index].to(device)
                (error.square().sum() / len(drawn)).backward()
            step.apply(batch, torch.empty(0, dtype=torch.int64), iteration, ess=1.0)
