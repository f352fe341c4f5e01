"""A Llama decoder with Hugging Face's parameter names, a static key-value cache, and grouped-query attention.

Sources: Touvron et al. 2023 (Llama 2), Su et al. 2021 (RoPE), Zhang and Sennrich 2019 (RMSNorm).
Shapes: N rows, T tokens of this call, S slots of the cache, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.linear import Linear
from embodied_rl.policies.recompute import run_layer


@dataclass(frozen=True)
class DecoderConfig:
    """One causal language model."""

    vocab_size: int
    """Rows of the embedding and of the head."""
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


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary factors, float32, each [T, head_dim] (shared by all rows) or [N, T, head_dim]."""

    cos: Tensor
    sin: Tensor

    def at(self, positions: Tensor) -> Rope:
        """The factors at integer `positions` of any shape."""
        return Rope(self.cos[positions], self.sin[positions])


def rope_table(length: int, head_dim: int, theta: float, device: torch.device) -> Rope:
    """Factors of positions 0..length-1; angle of pair i is position * theta^(-2i/head_dim), halves repeated."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return Rope(angle.cos(), angle.sin())


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Apply RoPE to [N, heads, T, head_dim]; pairs are (i, i + head_dim/2) as in Hugging Face's Llama."""
    cos, sin = rope.cos, rope.sin
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


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer's attention needs besides its input, see `Decoder.forward`. `query_rope`: factors of the queries."""

    rope: Rope
    query_rope: Rope
    mask: Tensor | None
    cache: KVCache | None
    causal: bool


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight


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

    def forward(self, queries: Tensor, x: Tensor, call: AttentionCall, layer: int) -> Tensor:
        """Attend from `queries` [N,R,D] (the tokens of `x` [N,T,D], or some of them) to all of `x` and the cache."""
        q = rotate(self._split(self.q_proj(queries)), call.query_rope)
        k = rotate(self._split(self.k_proj(x)), call.rope)
        v = self._split(self.v_proj(x))
        if call.cache is not None:
            k, v = call.cache.write(layer, k, v)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=call.mask, is_causal=call.causal and call.mask is None and x.shape[1] > 1,
            enable_gqa=self.config.kv_heads != self.config.heads,
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.dim, config.mlp_dim, bias=False)
        self.up_proj = Linear(config.dim, config.mlp_dim, bias=False)
        self.down_proj = Linear(config.mlp_dim, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Pre-norm attention and gated MLP."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.mlp = GatedMlp(config)
        self.input_layernorm = RMSNorm(config.dim, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, call: AttentionCall, layer: int, read: Tensor | None) -> Tensor:
        """[N,T,D] -> [N,T,D], or only the tokens `read` [N,R] -> [N,R,D]."""
        normed = self.input_layernorm(x)
        queries = normed
        if read is not None:
            index = read[..., None].expand(-1, -1, x.shape[-1])
            x, queries = x.gather(1, index), normed.gather(1, index)
        x = x + self.self_attn(queries, normed, call, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Token embeddings to final hidden states."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.recompute = False

    def rope(self, length: int, device: torch.device) -> Rope:
        """Factors of the first `length` positions."""
        return rope_table(length, self.config.head_dim, self.config.rope_theta, device)

    def forward(
        self, x: Tensor, rope: Rope, mask: Tensor | None = None, cache: KVCache | None = None,
        read: Tensor | None = None, causal: bool = True,
    ) -> Tensor:
        """Embeddings [N,T,D] -> normalised hidden states [N,T,D], or [N,R,D] of the tokens `read` (int64 [N,R]).

        `rope` holds the factors of these T tokens. `mask` is bool, broadcastable to [N, heads, T, keys], True where
        attention is allowed. Without a mask attention is causal over this call's tokens, which is only right when the
        cache is empty or T is 1; or, with `causal` off, over all of them both ways. With `read` the last layer computes
        only what is read; it needs an empty cache, `rope` shared by the rows, and a mask, if any, that is the same for
        every query. `recompute` saves memory under gradients: layers keep only their input (Chen et al. 2016).
        """
        call = AttentionCall(rope, rope, mask, cache, causal)
        last = call
        if read is not None:
            seen = mask
            if causal and mask is None:
                seen = (torch.arange(x.shape[1], device=x.device) <= read[..., None])[:, None]
            last = AttentionCall(rope, rope.at(read), seen, cache, causal)
        final = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            inputs = (x, last, index, read) if index == final else (x, call, index, None)
            x = run_layer(layer, inputs, self.recompute)
        if cache is not None:
            cache.length += rope.cos.shape[-2]
        return self.norm(x)


class CausalLM(nn.Module):
    """Decoder and output head, under Hugging Face's names `model` and `lm_head`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = Linear(config.dim, config.vocab_size, bias=False)
