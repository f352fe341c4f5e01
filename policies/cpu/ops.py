"""`cpu_loops` as differentiable operators, where they are faster than torch's: float32 on one CPU thread.

So does the learner run them, which takes several pieces of a batch side by side, one a thread, and whoever decides: an
actor's threads and its caller, which may have other numbers of torch threads, must round alike. Where gradients are
taken with more threads inside an operator, for other number formats or devices, the caller uses torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from embodied_rl.policies.cpu import loops
from embodied_rl.types import Array


def applies(*tensors: Tensor) -> bool:
    """Whether these can go through the operators below, here and now."""
    if torch.compiler.is_compiling() or (torch.is_grad_enabled() and torch.get_num_threads() > 1):
        return False
    return all(
        # not a subclass: fake tensors, for instance, hold no numbers
        type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and tensor.dtype == torch.float32
        for tensor in tensors
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] / sqrt(mean(x^2) + eps) * weight [D] (Zhang and Sennrich 2019, eq. 4)."""
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"a norm of {tuple(weight.shape)} weights does not fit vectors of {x.shape[-1]}")
    return _RmsNorm.apply(x, weight, eps)  # type: ignore[no-any-return]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, both [..., D] (Shazeer 2020)."""
    if gate.shape != up.shape:
        raise ValueError(f"gate {tuple(gate.shape)} and up {tuple(up.shape)} must be of one shape")
    return _SwiGlu.apply(gate, up)  # type: ignore[no-any-return]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `decoder.rotate`: x [N, heads, T, head_dim]; cos, sin [T, head_dim] or [N, T, head_dim], no gradients."""
    if cos.shape != sin.shape or cos.shape[-2:] != x.shape[2:] or (cos.dim() == 3 and len(cos) not in (1, len(x))):
        raise ValueError(f"rotary factors {tuple(cos.shape)} and {tuple(sin.shape)} do not fit {tuple(x.shape)}")
    return _Rotate.apply(x, cos, sin)  # type: ignore[no-any-return]


def _rows(x: Tensor) -> Array:
    """[..., D] -> [rows, D]."""
    return x.detach().reshape(-1, x.shape[-1]).contiguous().numpy()


def _copy(parameter: Tensor) -> Array:
    """FSDP2 frees a parameter's memory after each pass, which torch refuses once numpy has seen it."""
    return parameter.detach().clone().numpy()


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = _rows(x)
        out, scale = torch.empty(x.shape), torch.empty(len(rows))
        loops.rms_norm(rows, _copy(weight), eps, _rows(out), scale.numpy())
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        grad_x, grad_weight = torch.empty(x.shape), torch.zeros(weight.shape)
        loops.rms_norm_backward(_rows(grad), _rows(x), _copy(weight), scale.numpy(), _rows(grad_x), grad_weight.numpy())
        return grad_x, grad_weight, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        out = torch.empty(gate.shape)
        loops.swiglu(_rows(gate), _rows(up), _rows(out))
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty(gate.shape), torch.empty(up.shape)
        loops.swiglu_backward(_rows(grad), _rows(gate), _rows(up), _rows(grad_gate), _rows(grad_up))
        return grad_gate, grad_up


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, backward=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _turned(grad, *ctx.saved_tensors, backward=True), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, backward: bool) -> Tensor:
    """The projections that heads come from have them next to each other, so that nothing is copied."""
    tokens = x.detach().transpose(1, 2).contiguous()
    out = torch.empty(tokens.shape)
    cos, sin = (part.view(-1, *part.shape[-2:]).contiguous() for part in (cos, sin))
    loops.rotate(tokens.numpy(), cos.numpy(), sin.numpy(), backward, out.numpy())
    return out.transpose(1, 2)
