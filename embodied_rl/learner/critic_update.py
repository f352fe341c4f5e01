"""Further passes of the value head alone, over what it read when the policy acted (PPOConfig.critic_epochs).

A critic that teaches only itself needs no more of the network than its input, so that a pass costs next to nothing;
one pass with the policy leaves such a head far from what it could say.
"""

from __future__ import annotations

import numpy as np
import torch

from embodied_rl.learner.optimizer_step import OptimizerStep
from embodied_rl.policy import CRITIC_INPUT
from embodied_rl.rng import philox
from embodied_rl.types import RolloutBatch

# Philox stream of these passes' permutations; 1 to 10 are the sampler's, the minibatches' and the selection's.
_CRITIC = 11


def update_critic(step: OptimizerStep, batch: RolloutBatch, seed: int, iteration: int) -> None:
    """Take `critic_epochs` passes of steps on the squared error of the returns, of minibatches of `minibatch_size`."""
    config, algorithm = step.config, step.algorithm
    value_of = step.model.traits.critic_value
    assert value_of is not None, "the config sees to it"
    assert batch.returns is not None, "the policy's passes have prepared the batch"
    assert config.minibatch_size is not None, "the config sees to it"
    read, device = batch.replay[CRITIC_INPUT], next(step.model.parameters()).device
    parts = max(1, round(len(batch) / config.minibatch_size))
    for epoch in range(algorithm.critic_epochs):
        order = philox(seed, _CRITIC, iteration, epoch).permutation(len(batch))
        for rows in np.array_split(order, parts):
            index = torch.from_numpy(rows)
            error = value_of(read[index].to(device)) - batch.returns[index].to(device)
            error.square().mean().backward()
            step.apply(batch, index, iteration, ess=1.0)
