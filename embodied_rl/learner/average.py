"""A running mean of the weights that learn, to be evaluated and deployed in place of the newest ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from embodied_rl.errors import UserError
from embodied_rl.learner.types import TrainablePolicy, split_parameters


class WeightAverage:
    """torch's `AveragedModel` over the trainable parameters, float32 on the CPU.

    After the n-th update, mean += (weights - mean) max(1/n, 1/updates): the plain mean at first (Polyak and Juditsky
    1992), then an exponential one in which the last `updates` updates weigh about two thirds. The critic of a policy
    with running statistics keeps its newest weights: those of each update are in units of its own.

    Example:
        >>> average = WeightAverage(policy, updates=4)
        >>> average.add()  # after each update
        >>> with average.in_place():
        ...     report = evaluate(env, policy, specs, "greedy")
    """

    def __init__(self, policy: TrainablePolicy, updates: int) -> None:
        self._updates = updates
        actor, _ = split_parameters(
            policy, policy.traits.critic if policy.traits.update_normalizer is not None else None
        )
        self._learning = nn.ParameterList(actor)
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
        """Continue from `state`, and give the policy its own weights back.

        Raises:
            UserError: it is the mean of other weights.
        """
        if len(state["newest"]) != len(self._learning):
            raise UserError(
                "the checkpoint has a running mean of other weights (older versions took in the critic of a policy "
                "with running statistics): begin a new run."
            )
        self._averaged.load_state_dict(state["mean"])
        self._give(state["newest"])

    def _own(self) -> list[Tensor]:
        return [tensor.detach().to("cpu", copy=True) for tensor in self._learning]

    @torch.no_grad()
    def _give(self, weights: Iterable[Tensor]) -> None:
        for tensor, new in zip(self._learning, weights, strict=True):
            tensor.copy_(new)


def resume_average(average: WeightAverage | None, policy: TrainablePolicy, saved: dict[str, Any] | None) -> None:
    """Continue from a checkpoint whose policy was just loaded, also where the option was changed since.

    saved: `WeightAverage.state_dict`, None if the run had no average then.
    """
    if saved is not None:
        (average or WeightAverage(policy, 1)).load_state_dict(saved)
    elif average is not None:
        average.begin()
