"""Real-time chunking for pi0 and what is built on it: a chunk that goes on from the actions under way."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.flow import FlowSettings, draw_noise
from embodied_rl.policies.nn.decoder import GradientKV
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.model import Pi0Model, Prefix
from embodied_rl.policies.pi0.normalise import Pi0Statistics
from embodied_rl.policies.realtime import MAX_GUIDANCE_WEIGHT, ChunkPrefix, Guidance, sample_guided
from embodied_rl.policy import action_chunks, void_rows
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation


class Denoiser(Protocol):
    """What `Pi0Policy` offers to this."""

    model: Pi0Model
    flow: FlowSettings
    statistics: Pi0Statistics
    chunk_len: int
    action_dim: int

    @property
    def config(self) -> Pi0ModelConfig:
        """Shapes."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def read_prefix(self, images: Tensor, proprio: Tensor, instruction: list[str], suffixes: int) -> Prefix:
        """What all denoising steps read."""
        ...

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the network computes."""
        ...

    def state_offset(self, proprio: Tensor) -> Tensor:
        """What relative actions are added to."""
        ...


@torch.no_grad()
def continue_chunk(
    policy: Denoiser, obs: Observation, rng: DecisionRng, prefix: ChunkPrefix, limit: float = MAX_GUIDANCE_WEIGHT
) -> Tensor:
    """Decide for N rows, each going on from its planned actions (see `policies.realtime`).

    Rows without weights are decided as `act` decides greedily, from the same noise. The denoising steps are neither
    compiled nor left out, whatever `act` does.

    Args:
        policy: What decides.
        obs: N rows.
        rng: Draws the noise.
        prefix: What is planned.
        limit: Clip of the guidance weight, beta.

    Returns:
        Actions float32 [N, K, A] in [-1, 1]; NaN in rows that are not finite.
    """
    config = policy.config
    read = policy.read_prefix(obs.images, obs.proprio, obs.instruction, 1)
    keys, values = (torch.stack(parts) for parts in zip(*read.cache.layers(), strict=True))
    read = replace(read, cache=GradientKV.holding(keys, values))  # gradients flow through the actions' own part
    guidance = Guidance(*in_network_terms(policy, obs.proprio, prefix), limit)

    def velocity(x: Tensor, time: Tensor) -> Tensor:
        with policy.precision():
            return policy.model.velocity(read, x[:, None], time[:, None])[0][:, 0]

    noise = draw_noise(rng, policy.flow, config.horizon, config.max_action_dim, policy.device)
    x = sample_guided(velocity, noise.start, policy.flow.num_inference_steps, guidance)
    actions = policy.statistics.action.unnormalise(x[:, : policy.chunk_len, : policy.action_dim])
    if config.delta_dims:
        actions = actions + policy.state_offset(obs.proprio)
    return action_chunks(void_rows(config.clip(actions), actions))


def in_network_terms(policy: Denoiser, proprio: Tensor, prefix: ChunkPrefix) -> tuple[Tensor, Tensor]:
    """Target and weights [N,H,D]: normalised, and zero where there is no action."""
    config, rows = policy.config, len(proprio)
    shape = (rows, policy.chunk_len, policy.action_dim)
    if tuple(prefix.previous.shape) != shape or tuple(prefix.weights.shape) != shape[:2]:
        raise ValueError(
            f"a prefix is {list(shape)} actions and {list(shape[:2])} weights, got {list(prefix.previous.shape)} and "
            f"{list(prefix.weights.shape)}"
        )
    previous, weights = prefix.previous.to(policy.device), prefix.weights.to(policy.device)
    if config.delta_dims:
        previous = previous - policy.state_offset(proprio)
    padding = (0, config.max_action_dim - policy.action_dim, 0, config.horizon - policy.chunk_len)
    target = F.pad(policy.statistics.action.normalise(previous), padding)
    return target, F.pad(weights[..., None].expand(shape), padding)
