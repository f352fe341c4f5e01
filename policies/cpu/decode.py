"""Decoding on a CPU for small models, where calling an operator costs more than its arithmetic: one compiled loop.

It goes through all steps of 16 rows before the next 16, without Python and its lock, so that other threads act or learn
meanwhile. A block's activations lie transposed, [width, rows]: weights are read as they are stored, and a vector
register holds one number of all 16 rows.

The functions are inlined by numba, not by LLVM: else a process that compiles may run a function's own machine code
where one that loads the cache runs its caller's copy of it, and fast arithmetic rounds differently in the two.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401 - numba's np.dot, found by _one_blas_thread once it is loaded
import torch
from numba import njit
from threadpoolctl import ThreadpoolController
from torch import Tensor

from embodied_rl.policies.cpu.loops import FAST, exp
from embodied_rl.policies.nn.decoder import Decoder, KVCache, Rope
from embodied_rl.types import Array

_ROWS = 16
_SMALL = 1_000_000
"""Up to so many multiplications OpenBLAS has kernels that copy nothing beforehand (x86 with AVX-512): twice as fast."""


class Weights(NamedTuple):
    """Matrices [out, in] and norms [D], one a layer; norm, head [B, D] and embedding [B, D] of the B tokens.

    slots: [L, D], added to the embedding of the token before, or zeros.
    """

    queries: tuple[Array, ...]
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    outputs: tuple[Array, ...]
    gates: tuple[Array, ...]
    ups: tuple[Array, ...]
    downs: tuple[Array, ...]
    first_norms: tuple[Array, ...]
    second_norms: tuple[Array, ...]
    norm: Array
    head: Array
    embedding: Array
    slots: Array


class Context(NamedTuple):
    """What rows attend to: keys and values [layers, N, kv_heads, S, head_dim], row n's filled in [0, lengths[n]) and
    from `prompt` on; cos, sin [N, L - 1, head_dim] of the tokens to come."""

    keys: Array
    values: Array
    lengths: Array
    prompt: int
    cos: Array
    sin: Array


def decode(
    decoder: Decoder,
    head: Tensor,
    embedding: Tensor,
    slots: Tensor | None,
    hidden: Tensor,
    prompts: KVCache,
    rope: Rope,
    lengths: Tensor,
    uniform: Tensor | None,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Decode L tokens a row, and return them, int64 [N, L], and their log-probs float32 [N, L]; only under no_grad.

    decoder: plain float32 layers. head, embedding: rows [B, D] of the B tokens. slots [L, D]: added to what is read at
    token t > 0. hidden: [N, D], normalised, at the last token of the prompt. prompts: their keys and values, row n's in
    slots [0, lengths[n]), padding after it up to `prompts.length`; slots for L - 1 tokens follow, which are written.
    rope: of the tokens to come, [N, L - 1, head_dim]. uniform: [N, L] in [0, 1), or None for the argmax.
    """
    _one_blas_thread()
    rows, count = len(hidden), rope.cos.shape[1] + 1
    context = Context(
        prompts.keys.numpy(),
        prompts.values.numpy(),
        lengths.numpy(),
        prompts.length,
        rope.cos.contiguous().numpy(),
        rope.sin.contiguous().numpy(),
    )
    added = torch.zeros(count, hidden.shape[1]) if slots is None else slots
    draws = torch.empty(0, 0) if uniform is None else uniform.contiguous()
    tokens, log_prob = torch.empty(rows, count, dtype=torch.int64), torch.empty(rows, count)
    _decode(
        _weights(decoder, head, embedding, added),
        context,
        hidden.contiguous().numpy(),
        draws.numpy(),
        temperature,
        decoder.config.norm_eps,
        tokens.numpy(),
        log_prob.numpy(),
    )
    return tokens, log_prob


@cache
def _one_blas_thread() -> None:
    """Products here are too small to share, and OpenBLAS would let one caller at a time have its threads.

    numba's np.dot is SciPy's, whose wheels bring a library of their own: numpy's and torch's keep their threads. Where
    SciPy came without one (conda), nothing is changed.
    """
    for library in ThreadpoolController().lib_controllers:
        if library.user_api == "blas" and "scipy" in library.filepath:
            library.set_num_threads(1)


def _weights(decoder: Decoder, head: Tensor, embedding: Tensor, slots: Tensor) -> Weights:
    def of(path: str) -> tuple[Array, ...]:
        return tuple(_array(layer.get_parameter(f"{path}.weight")) for layer in decoder.layers)  # type: ignore[union-attr]

    projections = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "input_layernorm",
        "post_attention_layernorm",
    )
    return Weights(
        *(of(path) for path in projections),
        norm=_array(decoder.norm.weight),
        head=_array(head),
        embedding=_array(embedding),
        slots=_array(slots),
    )  # type: ignore[call-arg]


def _array(tensor: Tensor) -> Array:
    return tensor.detach().contiguous().numpy()


@njit(nogil=True, error_model="numpy")
def _product(matrix: Array, x: Array, out: Array) -> None:
    """out [M, rows] = matrix [M, K] @ x [K, rows]."""
    step = max(1, _SMALL // x.size)
    for start in range(0, len(matrix), step):
        np.dot(matrix[start : start + step], x, out[start : start + step])


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _rms_norm(x: Array, weight: Array, eps: float, factor: Array, out: Array) -> None:
    """As `cpu_loops.rms_norm`, of columns; factor: scratch [rows]."""
    dim, rows = x.shape
    factor[:] = np.float32(0.0)
    for d in range(dim):
        for n in range(rows):
            factor[n] += x[d, n] * x[d, n]
    for n in range(rows):
        factor[n] = np.float32(1.0) / np.float32(math.sqrt(factor[n] / np.float32(dim) + np.float32(eps)))
    for d in range(dim):
        for n in range(rows):
            out[d, n] = x[d, n] * factor[n] * weight[d]


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _swiglu(gate: Array, up: Array) -> None:
    """gate = silu(gate) * up."""
    dim, rows = gate.shape
    for d in range(dim):
        for n in range(rows):
            gate[d, n] = gate[d, n] / (np.float32(1.0) + exp(-gate[d, n])) * up[d, n]


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _turn(x: Array, cos: Array, sin: Array, out: Array) -> None:
    """RoPE of one head [head_dim]."""
    half = len(out) // 2
    for d in range(half):
        one, two = x[d], x[half + d]
        out[d] = one * cos[d] - two * sin[d]
        out[half + d] = two * cos[d] + one * sin[d]


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _attend(
    query: Array, keys: Array, values: Array, length: int, prompt: int, end: int, score: Array, out: Array
) -> None:
    """out [head_dim] = attention of one query to slots [0, length) and [prompt, end); score: scratch [slots]."""
    dim = len(query)
    scale, top = np.float32(1.0 / math.sqrt(dim)), np.float32(-np.inf)
    for first, last in ((0, length), (prompt, end)):
        for t in range(first, last):
            product = np.float32(0.0)
            for d in range(dim):
                product += query[d] * keys[t, d]
            score[t] = product * scale
            if score[t] > top:
                top = score[t]
    weight = np.float32(0.0)
    out[:] = np.float32(0.0)
    for first, last in ((0, length), (prompt, end)):
        for t in range(first, last):
            share = exp(score[t] - top)
            weight += share
            for d in range(dim):
                out[d] += share * values[t, d]
    for d in range(dim):
        out[d] /= weight


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _attend_all(
    context: Context, layer: int, start: int, t: int, qkv: tuple[Array, Array, Array], attended: Array
) -> None:
    """Put token t of a block's rows (from row `start`) into the cache and attend from it, head by head.

    qkv: [heads head_dim, rows], or with kv_heads for k and v. attended: [heads head_dim, rows].
    """
    queries, keys, values = qkv
    _, _, kv_heads, slots, dim = context.keys.shape
    shared, slot = len(queries) // dim // kv_heads, context.prompt + t
    column, query, out = np.empty(dim, np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
    score = np.empty(slots, np.float32)
    for i in range(queries.shape[1]):
        n = start + i
        cos, sin = context.cos[n, t], context.sin[n, t]
        for g in range(kv_heads):
            key, value = context.keys[layer, n, g], context.values[layer, n, g]
            column[:] = keys[g * dim : (g + 1) * dim, i]
            _turn(column, cos, sin, key[slot])
            value[slot] = values[g * dim : (g + 1) * dim, i]
            for h in range(g * shared, (g + 1) * shared):
                column[:] = queries[h * dim : (h + 1) * dim, i]
                _turn(column, cos, sin, query)
                _attend(query, key, value, context.lengths[n], context.prompt, slot + 1, score, out)
                attended[h * dim : (h + 1) * dim, i] = out


@njit(inline="always", fastmath=FAST, error_model="numpy")
def _choose(logits: Array, uniform: float, share: Array) -> tuple[int, np.float32]:
    """Token and log-prob under tempered logits [B], as `choose`; uniform: negative for the argmax; share: scratch [B].

    A NaN among the logits makes the log-prob one.
    """
    best = 0
    for b in range(len(logits)):
        if logits[b] > logits[best]:
            best = b
    top, total = logits[best], 0.0
    for b in range(len(logits)):
        below = logits[b] - top
        share[b] = np.float32(0.0) if below < np.float32(-87.0) else exp(below)  # where `exp` is cut off
    for b in range(len(logits)):
        total += np.float64(share[b])
    token = best
    if uniform >= 0.0:
        token, cumulative, sought = len(logits) - 1, 0.0, uniform * total
        for b in range(len(logits)):
            cumulative += np.float64(share[b])
            if cumulative > sought:
                token = b
                break
    return token, np.float32(np.float64(logits[token] - top) - math.log(total))


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _decode(
    weights: Weights,
    context: Context,
    hidden: Array,
    uniform: Array,
    temperature: float,
    eps: float,
    tokens: Array,
    log_prob: Array,
) -> None:
    """See `decode`; uniform: [0, 0] for the argmax; tokens, log_prob: [N, L], written."""
    rows, count = tokens.shape
    dim, bins = hidden.shape[1], len(weights.head)
    share = np.empty(bins, np.float32)
    for start in range(0, rows, _ROWS):
        width = min(_ROWS, rows - start)
        x, normed = np.empty((dim, width), np.float32), np.empty((dim, width), np.float32)
        normed[:] = hidden[start : start + width].T
        queries = np.empty((len(weights.queries[0]), width), np.float32)
        keys = np.empty((len(weights.keys[0]), width), np.float32)
        values, attended = np.empty_like(keys), np.empty_like(queries)
        gate = np.empty((len(weights.gates[0]), width), np.float32)
        up = np.empty_like(gate)
        logits, by_row = np.empty((bins, width), np.float32), np.empty((width, bins), np.float32)
        factor, more = np.empty(width, np.float32), np.empty((dim, width), np.float32)
        for t in range(count):
            if t > 0:
                for i in range(width):
                    x[:, i] = weights.embedding[tokens[start + i, t - 1]] + weights.slots[t]
                for layer in range(len(weights.queries)):
                    _rms_norm(x, weights.first_norms[layer], eps, factor, normed)
                    _product(weights.queries[layer], normed, queries)
                    _product(weights.keys[layer], normed, keys)
                    _product(weights.values[layer], normed, values)
                    _attend_all(context, layer, start, t - 1, (queries, keys, values), attended)
                    _product(weights.outputs[layer], attended, more)
                    x += more
                    _rms_norm(x, weights.second_norms[layer], eps, factor, normed)
                    _product(weights.gates[layer], normed, gate)
                    _product(weights.ups[layer], normed, up)
                    _swiglu(gate, up)
                    _product(weights.downs[layer], gate, more)
                    x += more
                _rms_norm(x, weights.norm, eps, factor, normed)
            _product(weights.head, normed, logits)
            by_row[:] = logits.T
            by_row /= np.float32(temperature)
            for i in range(width):
                draw = uniform[start + i, t] if uniform.size else -1.0
                token, found = _choose(by_row[i], draw, share)
                tokens[start + i, t], log_prob[start + i, t] = token, found
