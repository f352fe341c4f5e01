"""Gradient checkpointing: trade a second forward pass of each layer for its activations (Chen et al. 2016)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def run_layer(layer: nn.Module, inputs: tuple[Any, ...], recompute: bool) -> Tensor:
    """`layer(*inputs)`; with `recompute` and gradients only the inputs are kept, and backward runs the layer again."""
    if recompute and torch.is_grad_enabled():
        # the layers draw no random numbers
        return checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
    return layer(*inputs)


def set_gradient_checkpointing(module: nn.Module, on: bool) -> None:
    """Turn gradient checkpointing of every vision tower and decoder in `module` on or off."""
    for part in module.modules():
        if hasattr(part, "recompute"):
            part.recompute = on  # type: ignore[assignment]
