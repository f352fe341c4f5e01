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
    """A running mean of the weights that learn, float32 in the host's memory.

    After the n-th update, mean += (weights - mean) max(1/n, 1/updates): the plain mean first, then an exponential one,
    in which the last `updates` updates weigh about two thirds.
    Where a run ends depends less on its last steps so (Polyak and Juditsky 1992; for reinforcement learning Nikishin et
    al. 2018, Improving Stability in Deep Reinforcement Learning with Weight Averaging).
    """

    def __init__(self, policy: _Weighted, updates: int) -> None:
        self._learning = {name: tensor for name, tensor in policy.named_parameters() if tensor.requires_grad}
        self._updates = updates
        self._count = 0
        self._mean: dict[str, Tensor] = {}
        self.begin()

    def begin(self) -> None:
        """Forget what was: the mean is the weights as they are now, until `add` is called."""
        self._count = 0
        self._mean = {name: _on_host(tensor, torch.float32) for name, tensor in self._learning.items()}

    def add(self) -> None:
        """Take in the weights as they are now, after an update."""
        self._count += 1
        share = max(1 / self._count, 1 / self._updates)
        for name, tensor in self._learning.items():
            self._mean[name].lerp_(_on_host(tensor, torch.float32), share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A `with` block in which the policy has the mean; afterwards its own weights again, to the last bit."""
        own = self._own()
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
        return {"count": self._count, "mean": self._mean, "newest": self._own()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, and give the policy its own weights back."""
        self._count = int(state["count"])
        for name, mean in self._mean.items():
            mean.copy_(state["mean"][name])
        self._give(state["newest"])

    def _own(self) -> dict[str, Tensor]:
        return {name: _on_host(tensor, tensor.dtype) for name, tensor in self._learning.items()}

    @torch.no_grad()
    def _give(self, weights: dict[str, Tensor]) -> None:
        for name, tensor in self._learning.items():
            tensor.copy_(weights[name])


def resume_average(average: WeightAverage | None, policy: _Weighted, saved: dict[str, Any] | None) -> None:
    """Go on from a checkpoint whose policy was just loaded, also where the option was changed since.

    saved: `WeightAverage.state_dict`, None if there was no mean then.
    """
    if saved is not None:
        (average or WeightAverage(policy, 1)).load_state_dict(saved)
    elif average is not None:
        average.begin()


def _on_host(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to("cpu", dtype, copy=True)
