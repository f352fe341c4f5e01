"""Compiled loops over float32 arrays for what lies between a decoder's matrix products, on one thread, without the GIL.

torch does the same in many operators, each of which reads and writes all of memory again.
"""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from embodied_rl.types import Array

# What vector instructions need, as does numpy's error model: Python's checks each division. Nothing here assumes that
# numbers are finite, or a NaN could get lost.
FAST = {"contract", "reassoc", "nsz"}
_BLOCK = 64
"""Rows whose gradients are summed before they are added to the others': long sums of float32 lose digits."""


@intrinsic
def _float_of_bits(typing: Any, bits: Any) -> Any:
    """The float32 with these bits, an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(inline="always", fastmath=FAST, error_model="numpy")
def exp(x: np.float32) -> np.float32:
    """e^x in float32, to 5 units in the last place between -87 and 88, the range it is cut off at; NaN stays NaN.

    Written out, as math.exp keeps a loop from being vectorised: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2], with
    the coefficients of Cephes (Moshier 1984-2000, expf.c). numba's cache of callers in other files does not notice a
    change here: empty their __pycache__ after one.
    """
    if x < np.float32(-87.0):
        x = np.float32(-87.0)
    if x > np.float32(88.0):
        x = np.float32(88.0)
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = x - n * np.float32(0.693359375) - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    return (p * r * r + r + np.float32(1.0)) * _float_of_bits((np.int32(n) + np.int32(127)) << np.int32(23))


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def rms_norm(x: Array, weight: Array, eps: float, out: Array, scale: Array) -> None:
    """scale = 1 / sqrt(mean(x^2) + eps) of each row, out = x * scale * weight; x, out: [N, D], scale: [N]."""
    rows, dim = x.shape
    for i in range(rows):
        total = np.float32(0.0)
        for d in range(dim):
            total += x[i, d] * x[i, d]
        factor = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(dim) + np.float32(eps)))
        scale[i] = factor
        for d in range(dim):
            out[i, d] = x[i, d] * factor * weight[d]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def rms_norm_backward(grad: Array, x: Array, weight: Array, scale: Array, grad_x: Array, grad_weight: Array) -> None:
    """Gradients of `rms_norm` for x and, added to what `grad_weight` [D] holds, for the weight."""
    rows, dim = x.shape
    part = np.empty(dim, np.float32)
    for start in range(0, rows, _BLOCK):
        part[:] = np.float32(0.0)
        for i in range(start, min(rows, start + _BLOCK)):
            factor, product = scale[i], np.float32(0.0)
            for d in range(dim):
                product += grad[i, d] * weight[d] * x[i, d]
            shrink = product * factor * factor * factor / np.float32(dim)
            for d in range(dim):
                grad_x[i, d] = grad[i, d] * weight[d] * factor - x[i, d] * shrink
                part[d] += grad[i, d] * x[i, d] * factor
        for d in range(dim):
            grad_weight[d] += part[d]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def swiglu(gate: Array, up: Array, out: Array) -> None:
    """out = silu(gate) * up; all [N, D]."""
    rows, dim = out.shape
    for i in range(rows):
        for d in range(dim):
            out[i, d] = gate[i, d] / (np.float32(1.0) + exp(-gate[i, d])) * up[i, d]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def swiglu_backward(grad: Array, gate: Array, up: Array, grad_gate: Array, grad_up: Array) -> None:
    """Gradients of `swiglu`."""
    rows, dim = grad.shape
    for i in range(rows):
        for d in range(dim):
            sigmoid = np.float32(1.0) / (np.float32(1.0) + exp(-gate[i, d]))
            silu = gate[i, d] * sigmoid
            grad_up[i, d] = grad[i, d] * silu
            grad_gate[i, d] = grad[i, d] * up[i, d] * (sigmoid + silu * (np.float32(1.0) - sigmoid))


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def rotate(x: Array, cos: Array, sin: Array, backward: bool, out: Array) -> None:
    """RoPE, or with `backward` its inverse, as `decoder.rotate`; x, out: [N, T, heads, head_dim].

    cos, sin: [N, T, head_dim], or [1, T, head_dim] for all rows.
    """
    rows, tokens, heads, _ = x.shape
    sign = np.float32(-1.0) if backward else np.float32(1.0)
    for n in range(rows):
        m = n if len(cos) > 1 else 0
        for t in range(tokens):
            for h in range(heads):
                _rotate(x[n, t, h], cos[m, t], sin[m, t], sign, out[n, t, h])


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _rotate(x: Array, cos: Array, sin: Array, sign: np.float32, out: Array) -> None:
    half = len(x) // 2
    for d in range(half):
        one, two, turn = x[d], x[half + d], sin[d] * sign
        out[d] = one * cos[d] - two * turn
        out[half + d] = two * cos[d] + one * turn
