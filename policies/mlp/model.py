"""The network of a state policy: mean and standard deviation of its actions, value, and running statistics."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from embodied_rl.policies.mlp.config import LOG_STD, MLPModelConfig

_CLIP = 10.0
"""Normalised observations are clipped to this."""
_EPS = 1e-6
_LEAST_RATE = 0.1
"""The newest batch's share in the statistics of returns, once there have been 1 / _LEAST_RATE of them."""


class MLPModel(nn.Module):
    """Two networks of the same shape that share nothing but the normalisation of what they read.

    The statistics of observations and returns are buffers, so they are saved with the weights. Only
    `update_normalizer` changes them. The value network predicts returns at mean 0 and standard deviation 1 (PopArt, van
    Hasselt et al. 2016).

    Example:
        >>> model = MLPModel(MLPModelConfig(observation_dim=3, action_dim=1))
        >>> mean, log_std = model.action(model.normalised(torch.zeros(4, 3)))
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    return_mean: Tensor
    return_square: Tensor
    return_count: Tensor

    def __init__(self, config: MLPModelConfig, initial_std: float = 0.6) -> None:
        super().__init__()
        self.actor = _network(config.observation_dim, config.hidden, config.num_terms, gain=0.01)
        self.log_std = nn.Parameter(torch.full((config.num_terms,), math.log(initial_std)))
        self.critic = _network(config.observation_dim, config.hidden, 1, gain=1.0)
        self.register_buffer("mean", torch.zeros(config.observation_dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(config.observation_dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("return_mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("return_square", torch.ones((), dtype=torch.float64))
        self.register_buffer("return_count", torch.zeros((), dtype=torch.float64))

    def normalised(self, observed: Tensor) -> Tensor:
        """Observations float32 [N, P + S] at mean 0 and standard deviation 1 of what was seen so far, clipped."""
        scaled = (observed - self.mean.float()) / (self.var + _EPS).sqrt().float()
        return scaled.clamp(-_CLIP, _CLIP)

    def action(self, normalised: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation of the Gaussian, float32 [N, L] both."""
        mean = self.actor(normalised)
        return mean, self.log_std.clamp(*LOG_STD).expand_as(mean)

    def value(self, normalised: Tensor) -> Tensor:
        """float32 [N], in units of the returns."""
        return self.critic(normalised)[:, 0] * self._return_std().float() + self.return_mean.float()

    @torch.no_grad()
    def update_normalizer(self, observed: Tensor, returns: Tensor | None) -> None:
        """Take a batch into the statistics: float32 [B, P + S] and [B]. Values stay as they are."""
        self._update_observation_stats(observed.double())
        if returns is None:
            return
        mean, std = self.return_mean.clone(), self._return_std()
        rate = max(1 / (float(self.return_count) + 1), _LEAST_RATE)
        returns = returns.double().to(mean.device)
        self.return_mean.lerp_(returns.mean(), rate)
        self.return_square.lerp_(returns.square().mean(), rate)
        self.return_count += 1
        head, wider = self.critic[-1], self._return_std()
        assert isinstance(head, nn.Linear)
        head.weight.mul_((std / wider).float())
        head.bias.copy_((std * head.bias.double() + mean - self.return_mean) / wider)

    def _update_observation_stats(self, observed: Tensor) -> None:
        """Chan et al. (1979): mean and variance of two samples together."""
        count = self.count + len(observed)
        shift = observed.mean(dim=0) - self.mean
        spread = self.var * self.count + observed.var(dim=0, correction=0) * len(observed)
        self.mean += shift * len(observed) / count
        self.var.copy_((spread + shift.square() * self.count * len(observed) / count) / count)
        self.count.copy_(count)

    def _return_std(self) -> Tensor:
        return (self.return_square - self.return_mean.square()).clamp_min(_EPS).sqrt()


def _network(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [_linear(inputs, units, math.sqrt(2)), nn.Tanh()]
        inputs = units
    return nn.Sequential(*layers, _linear(inputs, outputs, gain))


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer
