"""What a policy must be to be trained, and the errors that stop an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from embodied_rl.policy import Policy


class NonFiniteError(RuntimeError):
    """A loss or gradient was NaN or infinite: no step was taken with it, and the batch lies in a file."""


class RatioError(RuntimeError):
    """Before the first step of an update a probability ratio was not 1: `act` and `evaluate` disagree."""


class TrainablePolicy(Policy, Protocol):
    """A policy whose weights are a torch module's."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As `torch.nn.Module.named_parameters`."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """As `torch.nn.Module.state_dict`."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> Any:
        """As `torch.nn.Module.load_state_dict`."""
        ...


def split_parameters(
    policy: TrainablePolicy, critic_prefix: str | None
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters as (policy, critic), of which the critic's names begin with `critic_prefix`."""
    actor: list[nn.Parameter] = []
    critic: list[nn.Parameter] = []
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            (critic if critic_prefix and name.startswith(critic_prefix) else actor).append(parameter)
    return actor, critic


def moving_tensors(policy: nn.Module) -> dict[str, Tensor]:
    """What training may change, by name: the parameters that learn, and buffers, where running statistics are."""
    learned = {name: value for name, value in policy.named_parameters() if value.requires_grad}
    # nobody can write into an expanded tensor
    return learned | {name: value for name, value in policy.named_buffers() if not _is_expanded(value)}


def _is_expanded(value: Tensor) -> bool:
    return any(step == 0 and size > 1 for size, step in zip(value.shape, value.stride(), strict=True))
