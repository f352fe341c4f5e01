"""A running mean of a policy's weights, to be evaluated and deployed in place of the newest ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class _Weighted(Protocol):
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class WeightAverage:
    """The mean of the weights that learn over about the last `updates` updates, float32 in the host's memory.

    After the n-th update, mean += (weights - mean) max(1/n, 1/updates): the plain mean first, an exponential one then.
    Where a run ends depends less on its last steps so (Polyak and Juditsky 1992; for reinforcement learning Nikishin et
    al. 2018, Improving Stability in Deep Reinforcement Learning with Weight Averaging).
    """

    def __init__(self, policy: _Weighted, updates: int) -> None:
        self._learning = {name: tensor for name, tensor in policy.named_parameters() if tensor.requires_grad}
        self._updates = updates
        self._count = 0
        self._mean = self._newest()

    def add(self) -> None:
        """Take in the weights as they are now, after an update."""
        self._count += 1
        share = max(1 / self._count, 1 / self._updates)
        for name, newest in self._newest().items():
            self._mean[name].lerp_(newest, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A `with` block in which the policy has the mean; afterwards its own weights again, to the last bit."""
        own = {name: tensor.detach().clone() for name, tensor in self._learning.items()}
        try:
            self.leave()
            yield
        finally:
            self._give(own)

    def leave(self) -> None:
        """Give the policy the mean for good: nothing is learned any more."""
        self._give(self._mean)

    def state_dict(self) -> dict[str, Any]:
        """The mean, and the policy's own weights: a checkpoint's policy has the mean, rounded to its number format."""
        own = {name: tensor.detach().cpu() for name, tensor in self._learning.items()}
        return {"count": self._count, "mean": self._mean, "newest": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, and give the policy its own weights back."""
        self._count = int(state["count"])
        for name, mean in self._mean.items():
            mean.copy_(state["mean"][name])
        self._give(state["newest"])

    def _newest(self) -> dict[str, Tensor]:
        return {name: tensor.detach().to("cpu", torch.float32, copy=True) for name, tensor in self._learning.items()}

    @torch.no_grad()
    def _give(self, weights: dict[str, Tensor]) -> None:
        for name, tensor in self._learning.items():
            tensor.copy_(weights[name])
