"""A second policy that acts while the first one learns."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn

PolicyT = TypeVar("PolicyT", bound=nn.Module)


def replicate(policy: PolicyT) -> PolicyT:
    """Copy a policy; what does not learn (frozen parameters, buffers) is shared and takes no memory."""
    shared = [parameter for parameter in policy.parameters() if not parameter.requires_grad]
    return copy.deepcopy(policy, {id(tensor): tensor for tensor in [*shared, *policy.buffers()]})


def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Bring what `source` learned to `target`, a replica of it."""
    with torch.no_grad():
        for new, old in zip(source.parameters(), target.parameters(), strict=True):
            if new.requires_grad:
                old.copy_(new)
