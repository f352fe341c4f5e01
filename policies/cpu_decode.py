"""One-token decoding on a CPU: four products a layer, and between them three compiled loops instead of many operators.

For small models, where calling an operator costs more than its arithmetic. The loops hold no GIL, so that other threads
act or learn meanwhile.
"""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from torch import Tensor

from embodied_rl.policies.decoder import Decoder, DecoderLayer, KVCache, Rope
from embodied_rl.types import Array

# What vector instructions need, as does numpy's error model: Python's checks each division. Nothing here assumes that
# numbers are finite, or a NaN could get lost.
_FAST = {"contract", "reassoc", "nsz"}


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """Weights as products read them, [in, out], both norms folded in; `inputs` yields q, k and v."""

    inputs: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class CpuDecoder:
    """The same function as `Decoder` for one token a row, with plain float32 layers; only under no_grad.

    cache: holds the prompts, row i's in slots [0, lengths[i]) of `cache.length`, and padding after it. rope: of the
    tokens to come, [N, steps, head_dim].
    """

    def __init__(self, decoder: Decoder, cache: KVCache, rope: Rope, lengths: Tensor) -> None:
        config = decoder.config
        rows, half = len(lengths), config.head_dim // 2
        self.layers = [_fuse(layer) for layer in decoder.layers]  # type: ignore[arg-type]
        self.norm = decoder.norm
        self.cache = cache
        self._prompt = cache.length
        self._lengths = lengths.numpy()
        self._cos, self._sin = (part[..., :half].transpose(0, 1).contiguous().numpy() for part in (rope.cos, rope.sin))
        self._keys, self._values = cache.keys.numpy(), cache.values.numpy()
        self._eps = config.norm_eps
        self._normed = torch.empty(rows, config.dim)
        self._qkv = torch.empty(rows, (config.heads + 2 * config.kv_heads) * config.head_dim)
        self._attended = torch.empty(rows, config.heads * config.head_dim)
        self._gate_up = torch.empty(rows, 2 * config.mlp_dim)
        self._gated = torch.empty(rows, config.mlp_dim)

    def step(self, x: Tensor, t: int) -> Tensor:
        """Embeddings [N, D] of token t to come -> normalised hidden states [N, D]; extends the cache by one slot.

        Overwrites `x`.
        """
        stream, slot = x.numpy(), self.cache.length
        normed, qkv, attended = self._normed.numpy(), self._qkv.numpy(), self._attended.numpy()
        for index, layer in enumerate(self.layers):
            normalise(stream, self._eps, normed)
            torch.mm(self._normed, layer.inputs, out=self._qkv)
            attend(
                qkv, self._cos[t], self._sin[t], self._keys[index], self._values[index], self._lengths, self._prompt,
                slot, attended,
            )  # fmt: skip
            x.addmm_(self._attended, layer.output)
            normalise(stream, self._eps, normed)
            torch.mm(self._normed, layer.gate_up, out=self._gate_up)
            swiglu(self._gate_up.numpy(), self._gated.numpy())
            x.addmm_(self._gated, layer.down)
        self.cache.length += 1
        return self.norm(x)


def _fuse(layer: DecoderLayer) -> _LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    inputs = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    return _LayerWeights(
        (inputs * layer.input_layernorm.weight).t(), attention.o_proj.weight.t(),
        (gate_up * layer.post_attention_layernorm.weight).t(), mlp.down_proj.weight.t(),
    )  # fmt: skip


@intrinsic
def _float_of_bits(typing: Any, bits: Any) -> Any:
    """The float32 with these bits, an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(inline="always", fastmath=_FAST, error_model="numpy")
def _exp(x: np.float32) -> np.float32:
    """e^x in float32, to 2 units in the last place between -87 and 88, the range it is cut off at; NaN stays NaN.

    Written out, as math.exp keeps a loop from being vectorised: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2], with
    the coefficients of Cephes (Moshier 1984-2000, expf.c).
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


@njit(nogil=True, cache=True, fastmath=_FAST, error_model="numpy")
def normalise(x: Array, eps: float, out: Array) -> None:
    """out = x / sqrt(mean(x^2) + eps) for each row; x, out: float32 [N, D]."""
    rows, dim = x.shape
    for i in range(rows):
        total = np.float32(0.0)
        for d in range(dim):
            total += x[i, d] * x[i, d]
        factor = np.float32(1.0) / np.float32(math.sqrt(total / np.float32(dim) + np.float32(eps)))
        for d in range(dim):
            out[i, d] = x[i, d] * factor


@njit(nogil=True, cache=True, fastmath=_FAST, error_model="numpy")
def swiglu(gate_up: Array, out: Array) -> None:
    """out = silu(gate) * up; gate_up: float32 [N, 2 M], gates first; out: float32 [N, M]."""
    rows, width = out.shape
    for i in range(rows):
        for d in range(width):
            gate = gate_up[i, d]
            out[i, d] = gate / (np.float32(1.0) + _exp(-gate)) * gate_up[i, width + d]


@njit(nogil=True, cache=True, fastmath=_FAST, error_model="numpy")
def attend(
    qkv: Array, cos: Array, sin: Array, keys: Array, values: Array, lengths: Array, prompt: int, slot: int, out: Array
) -> None:
    """Put one token a row into the cache at `slot`, and attend from it to all that its row holds.

    qkv: float32 [N, (heads + 2 kv_heads) head_dim], before the rotation by cos, sin [N, head_dim / 2] (pairs as in
    `decoder.rotate`). keys, values: [N, kv_heads, slots, head_dim], a row's filled in [0, lengths) and [prompt, slot).
    out: [N, heads head_dim].
    """
    rows, kv_heads, slots, dim = keys.shape
    heads = out.shape[1] // dim
    shared = heads // kv_heads
    query, score = np.empty(dim, np.float32), np.empty(slots, np.float32)
    for n in range(rows):
        ends = (lengths[n], slot + 1)
        for h in range(heads):
            g = h // shared
            if h % shared == 0:
                _rotate(qkv[n, (heads + g) * dim : (heads + g + 1) * dim], cos[n], sin[n], keys[n, g, slot])
                values[n, g, slot] = qkv[n, (heads + kv_heads + g) * dim : (heads + kv_heads + g + 1) * dim]
            _rotate(qkv[n, h * dim : (h + 1) * dim], cos[n], sin[n], query)
            _read(query, keys[n, g], values[n, g], ends, prompt, score, out[n, h * dim : (h + 1) * dim])


@njit(inline="always", fastmath=_FAST, error_model="numpy")
def _rotate(x: Array, cos: Array, sin: Array, out: Array) -> None:
    half = len(cos)
    for d in range(half):
        out[d] = x[d] * cos[d] - x[half + d] * sin[d]
        out[half + d] = x[half + d] * cos[d] + x[d] * sin[d]


@njit(inline="always", fastmath=_FAST, error_model="numpy")
def _read(
    query: Array, key: Array, value: Array, ends: tuple[int, int], prompt: int, score: Array, out: Array
) -> None:
    """Attention of one query [head_dim] to slots [0, ends[0]) and [prompt, ends[1])."""
    dim = len(query)
    scale = np.float32(1.0 / math.sqrt(dim))
    top = np.float32(-np.inf)
    for part in range(2):
        for t in range(prompt * part, ends[part]):
            product = np.float32(0.0)
            for d in range(dim):
                product += query[d] * key[t, d]
            score[t] = product * scale
            if score[t] > top:
                top = score[t]
    weight = np.float32(0.0)
    out[:] = np.float32(0.0)
    for part in range(2):
        for t in range(prompt * part, ends[part]):
            share = _exp(score[t] - top)
            weight += share
            for d in range(dim):
                out[d] += share * value[t, d]
    for d in range(dim):
        out[d] /= weight
