"""A running mean of the weights that learn, to be evaluated and deployed in place of the newest ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class _Weighted(Protocol):
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class WeightAverage:
    """torch's `AveragedModel` over the trainable parameters, float32 on the CPU.

    After the n-th update, mean += (weights - mean) max(1/n, 1/updates): the plain mean at first (Polyak and Juditsky
    1992), then an exponential one in which the last `updates` updates weigh about two thirds.

    Example:
        >>> average = WeightAverage(policy, updates=4)
        >>> average.add()  # after each update
        >>> with average.in_place():
        ...     report = evaluate(env, policy, specs, "greedy")
    """

    def __init__(self, policy: _Weighted, updates: int) -> None:
        self._updates = updates
        self._learning = nn.ParameterList(tensor for _, tensor in policy.named_parameters() if tensor.requires_grad)
        self.begin()

    def begin(self) -> None:
        """Start over: until `add` is called, the mean is the weights as they are now."""
        self._averaged = AveragedModel(self._learning, torch.device("cpu"), self._blend).float()

    def _blend(self, mean: Tensor, new: Tensor, count: Tensor | int) -> Tensor:
        return mean.lerp(new.float(), max(1 / (int(count) + 1), 1 / self._updates))

    def add(self) -> None:
        """Add the weights as they are now, after an update."""
        self._averaged.update_parameters(self._learning)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A `with` block in which the policy has the mean; afterwards its own weights again, to the last bit."""
        own = self._own()
        try:
            self.apply()
            yield
        finally:
            self._give(own)

    def apply(self) -> None:
        """Give the policy the mean for good, after the last update."""
        self._give(self._averaged.module.parameters())

    def state_dict(self) -> dict[str, Any]:
        """The mean, and the policy's own weights: a checkpoint's policy has the mean, rounded to its number format."""
        return {"mean": self._averaged.state_dict(), "newest": self._own()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, and give the policy its own weights back."""
        self._averaged.load_state_dict(state["mean"])
        self._give(state["newest"])

    def _own(self) -> list[Tensor]:
        return [tensor.detach().to("cpu", copy=True) for tensor in self._learning]

    @torch.no_grad()
    def _give(self, weights: Iterable[Tensor]) -> None:
        for tensor, new in zip(self._learning, weights, strict=True):
            tensor.copy_(new)


def resume_average(average: WeightAverage | None, policy: _Weighted, saved: dict[str, Any] | None) -> None:
    """Continue from a checkpoint whose policy was just loaded, also where the option was changed since.

    saved: `WeightAverage.state_dict`, None if the run had no average then.
    """
    if saved is not None:
        (average or WeightAverage(policy, 1)).load_state_dict(saved)
    elif average is not None:
        average.begin()
