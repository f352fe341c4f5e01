"""pi0's denoising step, compiled: what a decision computes most often, and always with the same shapes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from embodied_rl.policies.compile import Compiled
from embodied_rl.policies.flow import DenoiseStep, FlowSettings, Transition, step_time
from embodied_rl.policies.nn.decoder import GradientKV, Rope
from embodied_rl.policies.pi0.model import Prefix


class Denoiser(Protocol):
    """`Pi0Policy`, as far as it is needed here."""

    flow: FlowSettings

    def denoise(self, prefix: Prefix, x: Tensor, time: Tensor) -> Transition: ...


def compiled_denoising(policy: Denoiser, prefix: Prefix) -> DenoiseStep:
    """`policy.denoise_step` over `prefix`, for one recorded step at a time (M = 1) and without gradients."""
    keys, values = (torch.stack(parts, dim=1) for parts in zip(*prefix.cache.layers(), strict=True))
    valid = prefix.valid
    if valid is None:
        valid = torch.ones(keys.shape[0], keys.shape[3], dtype=torch.bool, device=keys.device)

    def step(x: Tensor, index: Tensor) -> Transition:
        time = step_time(index, policy.flow.num_inference_steps)
        return Transition(*_DENOISE(policy, x.clone(), time, keys, values, valid, prefix.rope.cos, prefix.rope.sin))

    return step


def _denoise(
    policy: Denoiser, x: Tensor, time: Tensor, keys: Tensor, values: Tensor, valid: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, ...]:
    """keys, values: [N, layers, kv_heads, S, head_dim]."""
    cache = GradientKV.holding(keys.transpose(0, 1), values.transpose(0, 1))
    return tuple(policy.denoise(Prefix(cache, valid, Rope(cos, sin), None), x, time))


_DENOISE = Compiled(_denoise)
