"""Heads that reinforcement learning adds to a published network."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from embodied_rl.policies.nn.linear import Linear
from embodied_rl.utils.value_bins import ValueBins


class CriticConfig(Protocol):
    """What a model's config says of its value head."""

    @property
    def critic_width(self) -> int: ...
    @property
    def value_hidden(self) -> tuple[int, int]: ...
    @property
    def value_bins(self) -> int: ...
    @property
    def value_range(self) -> tuple[float, float]: ...


class ValueHead(nn.Sequential):
    """A critic on hidden states of width `dim`; its last layer begins at zero, so that it pulls nothing.

    bins: what its outputs are logits of; None: its one output is the value.

    Example:
        >>> value, logits = ValueHead(64, (32, 16), ValueBins(51, 0.0, 1.0)).read(torch.zeros(4, 64))
    """

    def __init__(self, dim: int, hidden: tuple[int, int], bins: ValueBins | None = None) -> None:
        one, two, out = *hidden, 1 if bins is None else bins.count
        super().__init__(Linear(dim, one), nn.GELU(), Linear(one, two), nn.GELU(), Linear(two, out))
        self.bins = bins
        for parameter in self[4].parameters():
            nn.init.zeros_(parameter)

    @classmethod
    def of(cls, config: CriticConfig) -> ValueHead:
        """A fresh one for a model of `config`."""
        bins = None if config.value_bins == 1 else ValueBins(config.value_bins, *config.value_range)
        return cls(config.critic_width, config.value_hidden, bins)

    def read(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Hidden states [..., dim] -> values float32 [...] and the logits float32 [..., bins], None without bins."""
        out = self(hidden.to(next(self.parameters()).dtype)).float()
        if self.bins is None:
            return out[..., 0], None
        return self.bins.mean(out), out

    def fitted(self, config: CriticConfig) -> ValueHead:
        """Itself if it fits a model of `config`, else a fresh one in its place, of its device and number format."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            fresh = ValueHead.of(config)
        shapes, wanted = ([p.shape for p in head.parameters()] for head in (self, fresh))
        if (shapes, self.bins) == (wanted, fresh.bins):
            return self
        return fresh.to(next(self.parameters()))

    @property
    def has_learned(self) -> bool:
        """Whether its output is another one than at the beginning."""
        return any(bool(parameter.detach().any()) for parameter in self[4].parameters())


def mixed(logits: Tensor) -> Tensor:
    """Logits [N, M, bins] of M distributions -> those of the equal mixture of them [N, bins]."""
    return logits.log_softmax(dim=-1).logsumexp(dim=1)
