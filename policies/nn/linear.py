"""A linear layer that runs float32 on a CPU through oneDNN.

torch sends float32 products on a CPU to MKL. With many rows oneDNN is faster than that on AMD processors, forward and
backward, and the results agree to rounding. Everything else goes to torch as usual.

oneDNN keeps half a megabyte for each number of rows and layer it has seen, 1024 of them in every thread and as many
again for all. Training sees many: that took 0.7 GB within six iterations, and saved no time.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# read at the first product; what somebody set stays
os.environ.setdefault("LRU_CACHE_CAPACITY", "128")  # torch's: by thread
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")  # of the whole process

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_MIN_ROWS = 16
_MIN_WIDTH = 64
"""Of a weight's sides: gradients of narrower ones are up to ten times as slow through oneDNN."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out] -> [..., out]."""
    plain = x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32
    # under autocast torch must choose the number format
    if plain or torch.is_autocast_enabled("cpu") or not _ONEDNN:
        return F.linear(x, weight, bias)
    if torch.compiler.is_compiling():  # the compiler knows oneDNN's own operator for constant weights only
        return torch.ops.embodied_rl.onednn_linear(x, weight, bias)  # type: ignore[no-any-return]
    if x.numel() < _MIN_ROWS * x.shape[-1]:
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-any-return]
    return _product(x, weight, bias)


def linear_float32(x: Tensor, weight: Tensor) -> Tensor:
    """`linear` without bias in float32, whatever the inputs' format, also under autocast: for logits."""
    if not torch.is_autocast_enabled(x.device.type):
        return linear(x.float(), weight.float())
    with torch.autocast(x.device.type, enabled=False):
        return linear(x.float(), weight.float())


class Linear(nn.Linear):
    """`nn.Linear` (same parameters, so adapters and checkpoints see no difference) that computes with `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


_LIBRARY = torch.library.Library("embodied_rl", "FRAGMENT")
_LIBRARY.define("onednn_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_LIBRARY.impl("onednn_linear", _product, "CPU")


@torch.library.register_fake("embodied_rl::onednn_linear", lib=_LIBRARY)
def _product_shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


class _OneDnnLinear(torch.autograd.Function):
    """All three products through oneDNN, which multiplies with AVX-512 where MKL takes AVX2 on AMD processors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        flat = grad.view(-1, grad.shape[-1])
        need_x, need_weight, need_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.t(), None) if need_x else None,
            _weight_gradient(flat, x.reshape(-1, x.shape[-1])) if need_weight else None,
            flat.sum(dim=0) if need_bias else None,
        )


def _weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """grad [N, out]^T @ x [N, in] -> [out, in]."""
    if min(grad.shape[1], x.shape[1]) < _MIN_WIDTH:
        return grad.t() @ x
    # rows with gaps between them would go to oneDNN's slow reference kernel
    grad, x = grad.contiguous(), x.contiguous()
    # of two transposed operands it copies the first: let that be the narrower one
    if x.shape[1] < grad.shape[1]:
        return _product(x.t(), grad.t(), None).t()
    return _product(grad.t(), x.t(), None)
