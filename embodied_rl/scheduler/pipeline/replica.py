"""A second policy that acts while the first one learns."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.learner.types import moving_tensors

PolicyT = TypeVar("PolicyT", bound=nn.Module)


def replicate(policy: PolicyT, device: torch.device | None = None) -> PolicyT:
    """Copy a policy to another device; None: its own, where the frozen parameters are shared.

    Buffers are not: they may be running statistics, which must not move while the replica acts.
    """
    if device is None:
        shared = [parameter for parameter in policy.parameters() if not parameter.requires_grad]
        return copy.deepcopy(policy, {id(tensor): tensor for tensor in shared})
    # Tensor by tensor: the learner's device has no room for a second policy on its way to the other.
    moved = {id(tensor): _moved(tensor, device) for tensor in [*policy.parameters(), *policy.buffers()]}
    return copy.deepcopy(policy, moved)


def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Bring weights and buffers of `source` to `target`, a replica of it; devices may differ."""
    with torch.no_grad():
        for new, old in zip(moving_tensors(source).values(), moving_tensors(target).values(), strict=True):
            old.copy_(new)


def acting_device(wanted: str | None, policy: nn.Module) -> torch.device | None:
    """The device that a replica of `policy` acts on, None for the policy's own.

    UserError if it is not there, or is the policy's own after all.
    """
    if wanted is None:
        return None
    device = torch.device(wanted)
    home = next(policy.parameters()).device
    if device.type == "cuda":
        count = torch.cuda.device_count()
        device = torch.device("cuda", device.index or 0)
        if device.index >= count:
            raise UserError(f"--scheduler.act-device {wanted}: torch sees {count} GPUs here, counted from cuda:0.")
    if device == home:
        raise UserError(
            f"--scheduler.act-device {wanted} is where the policy learns: name another device, or leave the option out."
        )
    return device


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    copied = tensor.detach().to(device, copy=True)
    return nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied
