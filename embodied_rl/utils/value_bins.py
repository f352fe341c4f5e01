"""A critic's value as a distribution over bins: HL-Gauss (Farebrother et al. 2024, 'Stop Regressing')."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SIGMA = 0.75
"""Standard deviation of a target, in widths of a bin."""
_MARGIN = 3
"""Bins beyond either end, which hold a target's tails: cut off, they would pull the mean of one at the end inwards."""


@dataclass(frozen=True, slots=True)
class ValueBins:
    """`count` bins of equal width whose centres reach from `low` to `high`, and three more than that at either end.

    Example:
        >>> bins = ValueBins(51, 0.0, 1.0)
        >>> bins.mean(bins.targets(torch.tensor([0.25])).log())
        tensor([0.2500])
    """

    count: int
    low: float
    high: float

    @property
    def width(self) -> float:
        """Of a bin."""
        return (self.high - self.low) / (self.count - 2 * _MARGIN - 1)

    def centres(self, like: Tensor) -> Tensor:
        """float32 [bins], on the device of `like`."""
        return self.low + (torch.arange(self.count, device=like.device) - _MARGIN) * self.width

    def targets(self, returns: Tensor) -> Tensor:
        """Probabilities float32 [..., bins]: a Gaussian around each of `returns` [...], which are clipped to the range.

        Each row adds up to 1, and its mean is the return.
        """
        edges = self.low + (torch.arange(self.count + 1, device=returns.device) - _MARGIN - 0.5) * self.width
        offset = edges - returns.clamp(self.low, self.high)[..., None]
        below = torch.special.erf(offset / (_SIGMA * self.width * math.sqrt(2)))
        mass = below.diff(dim=-1)
        return mass / mass.sum(dim=-1, keepdim=True)

    def mean(self, logits: Tensor) -> Tensor:
        """What logits [..., bins] say the value is: float32 [...]."""
        return (logits.float().softmax(dim=-1) * self.centres(logits)).sum(dim=-1)  # autocast would halve a product
