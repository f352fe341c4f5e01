"""A Llama or Gemma decoder with Hugging Face's parameter names, key-value caches, and grouped-query attention.

Sources: Touvron et al. 2023 (Llama 2), Gemma Team 2024 (Gemma), Su et al. 2021 (RoPE), Zhang and Sennrich 2019
(RMSNorm), Physical Intelligence 2025 (adaptive RMSNorm of pi0.5).
Shapes: N rows, T tokens of this call, S slots of the cache, D model width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.cpu import ops
from embodied_rl.policies.nn.checkpointing import run_layer
from embodied_rl.policies.nn.linear import Linear


@dataclass(frozen=True)
class DecoderConfig:
    """One causal language model."""

    vocab_size: int
    """Rows of the embedding and of the head; 0 for a decoder that reads vectors only."""
    dim: int
    """Width of the residual stream."""
    layers: int
    """Number of layers."""
    heads: int
    """Query heads."""
    kv_heads: int
    """Key and value heads; divides `heads`."""
    head_dim: int
    """Width of one head; even."""
    mlp_dim: int
    """Hidden width of the gated MLP."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1e-6
    """Added to the mean square in RMSNorm."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """The gated MLP's activation: Llama's, or Gemma's."""
    norm_offset: bool = False
    """A norm's weight is stored as its difference from 1 (Gemma)."""
    condition_dim: int = 0
    """Width of the vector that scales, shifts and gates in place of the norms' weights (pi0.5); 0 for plain norms."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary factors, float32, each [T, head_dim] (shared by all rows) or [N, T, head_dim]."""

    cos: Tensor
    sin: Tensor

    def at(self, tokens: Tensor) -> Rope:
        """The factors of `tokens`: integers of any shape, or [N, R] where each row has its own factors."""
        if self.cos.dim() == 2:
            return Rope(self.cos[tokens], self.sin[tokens])
        index = tokens[..., None].expand(-1, -1, self.cos.shape[-1])
        return Rope(self.cos.gather(1, index), self.sin.gather(1, index))

    def first(self, count: int) -> Rope:
        """The factors of the first `count` tokens."""
        return Rope(self.cos[..., :count, :], self.sin[..., :count, :])


def rope_factors(positions: Tensor, head_dim: int, theta: float) -> Rope:
    """Factors of integer `positions` [...]; angle of pair i is position * theta^(-2i/head_dim), halves repeated."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim)
    angle = positions.float()[..., None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return Rope(angle.cos(), angle.sin())


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Apply RoPE to [N, heads, T, head_dim]; pairs are (i, i + head_dim/2) as in Hugging Face's Llama."""
    cos, sin = rope.cos, rope.sin
    if ops.applies(x, cos, sin):
        return ops.rotate(x, cos, sin)
    if cos.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class KVCache:
    """Static buffers [layers, N, kv_heads, S, head_dim]. Written in place: only for use without gradients."""

    def __init__(self, config: DecoderConfig, rows: int, slots: int, like: Tensor) -> None:
        shape = (config.layers, rows, config.kv_heads, slots, config.head_dim)
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.length = 0

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [N, kv_heads, T, head_dim] after the `length` slots in use; return all used keys and values.

        `length` itself is advanced by `Decoder.forward` once all layers have written.
        """
        if torch.is_grad_enabled():
            raise RuntimeError("KVCache is written in place; call it under torch.no_grad()")
        end = self.length + keys.shape[2]
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the `length` slots in use, each [N, kv_heads, length, head_dim]."""
        return self.keys[layer, :, :, : self.length], self.values[layer, :, :, : self.length]

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values by layer, each [N, kv_heads, length, head_dim]."""
        end = self.length
        return [(keys[:, :, :end], values[:, :, :end]) for keys, values in zip(self.keys, self.values, strict=True)]

    def branch(self) -> KVCache:
        """A cache that goes on from here in the same buffers; what it writes is not part of this one."""
        return copy.copy(self)


class GradientKV:
    """What `KVCache` does, in tensors of their own: gradients flow back to whoever wrote them.

    Writing is idempotent, so layers may be computed again in the backward pass.
    """

    def __init__(self, base: GradientKV | None = None) -> None:
        self._base = base
        self._written: dict[int, tuple[Tensor, Tensor]] = {}
        self.length = 0 if base is None else base.length

    @classmethod
    def holding(cls, keys: Tensor, values: Tensor) -> GradientKV:
        """A cache that another one's keys and values fill, each [layers, N, kv_heads, T, head_dim]."""
        cache = cls()
        cache._written = dict(enumerate(zip(keys, values, strict=True)))
        cache.length = keys.shape[3]
        return cache

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """As `KVCache.read`, of a branch: what it goes on from, whatever it wrote itself."""
        if self._base is None:
            raise RuntimeError("only a branch is read while it is written")
        return self._base._written[layer]

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values by layer, each [N, kv_heads, length, head_dim]."""
        return [self._written[layer] for layer in sorted(self._written)]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As `KVCache.write`."""
        if self._base is not None:
            old_keys, old_values = self._base._written[layer]
            keys, values = torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)
        self._written[layer] = keys, values
        return keys, values

    def branch(self) -> GradientKV:
        """A cache that goes on from here; what it writes is not part of this one."""
        return GradientKV(self)


Cache = KVCache | GradientKV


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer needs besides its input, see `Decoder.forward`. `query_rope`: factors of the queries."""

    rope: Rope
    query_rope: Rope
    mask: Tensor | None
    cache: Cache | None
    causal: bool
    condition: Tensor | None


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32; with `offset` * (1 + weight).

    With `condition_dim` there is no weight: `dense` makes scale, shift and gate out of a condition vector.
    """

    def __init__(self, dim: int, eps: float, *, offset: bool = False, condition_dim: int = 0) -> None:
        super().__init__()
        self.eps = eps
        self.offset = offset
        self.conditional = condition_dim > 0
        if self.conditional:
            self.dense = Linear(condition_dim, 3 * dim)
            self._start_plain(dim)
        else:
            self.weight = nn.Parameter(torch.zeros(dim) if offset else torch.ones(dim))

    @torch.no_grad()
    def _start_plain(self, dim: int) -> None:
        """Whatever the condition: scale and shift 0, gate 1, which is a plain norm in a plain residual layer."""
        self.dense.weight.zero_()
        self.dense.bias.zero_()
        self.dense.bias[2 * dim :] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            weight = 1.0 + self.weight if self.offset else self.weight
            if ops.applies(x, weight):
                return ops.rms_norm(x, weight, self.eps)
            return F.rms_norm(x, weight.shape, weight, self.eps)
        normed = F.rms_norm(x.float(), self.weight.shape, None, self.eps)
        if self.offset:  # Gemma multiplies before it rounds, Llama after
            return (normed * (1.0 + self.weight.float())).to(x.dtype)
        return normed.to(x.dtype) * self.weight

    def gated(self, x: Tensor, condition: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Normalise x [N,T,D]; return it and the gate of the branch that reads it, or None for a plain residual.

        condition: [N,G,condition_dim], each for T / G consecutive tokens; None with plain norms.
        """
        if not self.conditional:
            return self(x), None
        assert condition is not None, "this decoder needs a condition"
        modulation = self.dense(condition)
        if modulation.shape[1] > 1:
            modulation = modulation.repeat_interleave(x.shape[1] // modulation.shape[1], dim=1)
        scale, shift, gate = modulation.chunk(3, dim=-1)
        normed = F.rms_norm(x.float(), x.shape[-1:], None, self.eps)
        return (normed * (1.0 + scale.float()) + shift.float()).to(x.dtype), gate


class SelfAttention(nn.Module):
    """Attention with rotary positions and grouped keys and values."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.q_proj = Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.k_proj = Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.v_proj = Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.o_proj = Linear(config.heads * config.head_dim, config.dim, bias=False)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)

    def keys_values(self, x: Tensor, call: AttentionCall, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of what the cache holds and of `x` [N,T,D], which it then holds too."""
        k = rotate(self._split(self.k_proj(x)), call.rope)
        v = self._split(self.v_proj(x))
        return (k, v) if call.cache is None else call.cache.write(layer, k, v)

    def forward(self, queries: Tensor, x: Tensor, call: AttentionCall, layer: int) -> Tensor:
        """Attend from `queries` [N,R,D] (the tokens of `x` [N,T,D], or some of them) to all of `x` and the cache."""
        q = rotate(self._split(self.q_proj(queries)), call.query_rope)
        k, v = self.keys_values(x, call, layer)
        is_causal = call.causal and call.mask is None
        if x.shape[1] == 1:  # a token alone sees all of the cache
            is_causal = False
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=call.mask, is_causal=is_causal, enable_gqa=self.config.kv_heads != self.config.heads
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class GatedMlp(nn.Module):
    """down(activation(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.dim, config.mlp_dim, bias=False)
        self.up_proj = Linear(config.dim, config.mlp_dim, bias=False)
        self.down_proj = Linear(config.mlp_dim, config.dim, bias=False)
        self.silu = config.activation == "silu"

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.silu and ops.applies(gate, up):
            return self.down_proj(ops.swiglu(gate, up))
        return self.down_proj((F.silu(gate) if self.silu else F.gelu(gate, approximate="tanh")) * up)


class DecoderLayer(nn.Module):
    """Pre-norm attention and gated MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.mlp = GatedMlp(config)
        self.input_layernorm = _norm(config)
        self.post_attention_layernorm = _norm(config)

    def forward(self, x: Tensor, call: AttentionCall, layer: int, read: Tensor | None) -> Tensor:
        """[N,T,D] -> [N,T,D], or only the tokens `read` [N,R] -> [N,R,D]."""
        normed, gate = self.input_layernorm.gated(x, call.condition)
        queries = normed
        if read is not None:
            index = read[..., None].expand(-1, -1, x.shape[-1])
            x, queries = x.gather(1, index), normed.gather(1, index)
        x = _add(x, self.self_attn(queries, normed, call, layer), gate)
        normed, gate = self.post_attention_layernorm.gated(x, call.condition)
        return _add(x, self.mlp(normed), gate)

    def keys_values(self, x: Tensor, call: AttentionCall, layer: int) -> tuple[Tensor, Tensor]:
        """What `forward` writes to the cache, and no more; plain norms only."""
        return self.self_attn.keys_values(self.input_layernorm(x), call, layer)


def _norm(config: DecoderConfig) -> RMSNorm:
    return RMSNorm(config.dim, config.norm_eps, offset=config.norm_offset, condition_dim=config.condition_dim)


def _add(x: Tensor, branch: Tensor, gate: Tensor | None) -> Tensor:
    return x + (branch if gate is None else branch * gate)


class Decoder(nn.Module):
    """Token embeddings to final hidden states."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        if config.vocab_size:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = _norm(config)
        self.recompute = False

    def rope(self, length: int, device: torch.device, first: Tensor | None = None) -> Rope:
        """Factors of `length` tokens, at positions 0, 1, ...; or, where some were left out, of tokens that stay.

        first: int64 [N, F], positions of each row's first F tokens; the others count on from the last of these.
        """
        positions = torch.arange(length, device=device)
        if first is not None:
            positions = torch.cat([first, first[:, -1:] + 1 + positions[: length - first.shape[1]]], dim=1)
        return rope_factors(positions, self.config.head_dim, self.config.rope_theta)

    def forward(
        self,
        x: Tensor,
        rope: Rope,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        read: Tensor | None = None,
        causal: bool = True,
        condition: Tensor | None = None,
    ) -> Tensor:
        """Embeddings [N,T,D] -> normalised hidden states [N,T,D], or [N,R,D] of the tokens `read` (int64 [N,R]).

        `rope` holds the factors of these T tokens. `mask` is bool, broadcastable to [N, heads, T, keys], True where
        attention is allowed. Without a mask attention is causal over this call's tokens, which is only right when the
        cache is empty or T is 1; or, with `causal` off, over all of them both ways. With `read` the last layer computes
        only what is read; it needs an empty cache, and a mask, if any, that is the same for every query. `recompute`
        saves memory under gradients: layers keep only their input (Chen et al. 2016). `condition`: see `RMSNorm.gated`.
        """
        call = AttentionCall(rope, rope, mask, cache, causal, condition)
        last = call
        if read is not None:
            seen = mask
            if causal and mask is None:
                seen = (torch.arange(x.shape[1], device=x.device) <= read[..., None])[:, None]
            last = AttentionCall(rope, rope.at(read), seen, cache, causal, condition)
        final = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            inputs = (x, last, index, read) if index == final else (x, call, index, None)
            x = run_layer(layer, inputs, self.recompute)
        if cache is not None:
            cache.length += rope.cos.shape[-2]
        return self.norm.gated(x, condition)[0]

    def fill(
        self, x: Tensor, rope: Rope, mask: Tensor | None, cache: Cache, *, summarise: bool = False, attach: bool = False
    ) -> Tensor | None:
        """`forward` without `causal`, for the cache's sake: of the last layer only keys and values are computed.

        Plain norms only. summarise: return what `forward` would, with gradients if `attach`; the cache must be empty.
        """
        call = AttentionCall(rope, rope, mask, cache, False, None)
        *layers, final = self.layers
        assert isinstance(final, DecoderLayer)
        for index, layer in enumerate(layers):
            x = run_layer(layer, (x, call, index, None), self.recompute)
        final.keys_values(x, call, len(layers))
        cache.length += rope.cos.shape[-2]
        if not summarise:
            return None
        with torch.set_grad_enabled(attach and torch.is_grad_enabled()):
            return self.norm(final(x, replace(call, cache=None), len(layers), None))


class CausalLM(nn.Module):
    """Decoder and output head, under Hugging Face's names `model` and `lm_head`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = Linear(config.dim, config.vocab_size, bias=False)
