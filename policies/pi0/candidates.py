"""Chunks to choose from for pi0 and what is built on it: images and prompt are read once for all of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from embodied_rl.policies.efficient import DenoiseReuse
from embodied_rl.policies.flow import FlowSettings, Path, Transition, draw_noise, sample_path
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.model import Pi0Model, Prefix
from embodied_rl.policy import ActMode, Proposals
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Observation


class Denoiser(Protocol):
    """What `Pi0Policy` offers to this."""

    model: Pi0Model
    flow: FlowSettings
    denoise_reuse: int

    @property
    def config(self) -> Pi0ModelConfig:
        """Shapes."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    def read_prefix(
        self, images: Tensor, proprio: Tensor, instruction: list[str], suffixes: int, *, summarise: bool = False
    ) -> Prefix:
        """What all denoising steps read."""
        ...

    def denoise_step(self, prefix: Prefix, x: Tensor, step: Tensor) -> Transition:
        """One denoising step."""
        ...

    def decided(self, path: Path, proprio: Tensor) -> ActOutput:
        """What paths come to."""
        ...

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the network computes."""
        ...


@torch.no_grad()
def propose(policy: Denoiser, obs: Observation, rng: DecisionRng, mode: ActMode, count: int) -> Proposals:
    """See `PolicyTraits.propose`: each chunk from noise of its own, in either mode."""
    config, rows = policy.config, len(obs.instruction)
    prefix = policy.read_prefix(obs.images, obs.proprio, obs.instruction, count, summarise=True)
    summary = _summary(policy, prefix, rows)
    if policy.denoise_reuse > 1:
        prefix = replace(prefix, expert=DenoiseReuse(policy.model.expert, policy.denoise_reuse))
    noise = draw_noise(rng.candidates(count), policy.flow, config.horizon, config.max_action_dim, policy.device)

    def step(x: Tensor, index: Tensor) -> Transition:
        out = policy.denoise_step(prefix, x.reshape(rows, count, *x.shape[2:]), index.reshape(rows, count))
        return Transition(*(part.flatten(0, 1)[:, None] for part in out))

    path = sample_path(step, noise, policy.flow, explore=mode == "sample")
    return Proposals(policy.decided(path, obs.proprio.repeat_interleave(count, dim=0)), summary)


@torch.no_grad()
def summarise(policy: Denoiser, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
    """See `PolicyTraits.summarise`."""
    return _summary(policy, policy.read_prefix(images, proprio, instruction, 1, summarise=True), len(instruction))


def _summary(policy: Denoiser, prefix: Prefix, rows: int) -> Tensor:
    """float32 [N, D + W]: mean hidden state of images and prompt, and that of the action tokens at the time of pure
    noise, with zeros in its place: what the action expert knows before it has begun a chunk."""
    config, device = policy.config, policy.device
    nothing = torch.zeros(rows, 1, config.horizon, config.max_action_dim, device=device)
    with policy.precision():
        _, hidden = policy.model.velocity(prefix, nothing, torch.ones(rows, 1, device=device))
    assert prefix.summary is not None, "it was asked for"
    return torch.cat([prefix.summary.float(), hidden[:, 0].mean(dim=1).float()], dim=1)
