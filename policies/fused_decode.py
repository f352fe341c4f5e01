"""One-token decoding with few operators: for small models on a GPU, where calling one costs more than its arithmetic.

On a CPU `cpu_decode` does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.nn.decoder import Decoder, DecoderLayer, KVCache, Rope


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """Weights [out, in] of a layer, both norms folded in; `inputs` yields q and k (rotary pairs adjacent), then v."""

    inputs: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class FusedDecoder:
    """The same function as `Decoder` for one token a row, from weights fused once and then used for many tokens.

    RMSNorm weights are folded into the next matrix; q, k and v come out of one product and gate and up out of another.
    The rows of q and k are reordered so that a rotary pair is adjacent and RoPE is one complex product; keys already
    in the cache are reordered to match, which leaves every q.k unchanged. float32 only, as complex numbers need.
    """

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self.config = decoder.config
        self.cache = cache
        self.layers = [_fuse(layer, decoder.config.head_dim) for layer in decoder.layers]  # type: ignore[arg-type]
        self.norm = decoder.norm
        used = cache.keys[:, :, :, : cache.length]
        used.copy_(_pair(used))

    def step(self, x: Tensor, rotation: Tensor, mask: Tensor | None) -> Tensor:
        """Embeddings [N, D] of the next token -> normalised hidden states [N, D]; extends the cache by one slot.

        rotation: complex [N, 1, head_dim / 2] of each row's position. mask: bool [N, 1, 1, slots used after this step].
        """
        config, cache = self.config, self.cache
        shape, rows, slot, half = (config.dim,), x.shape[0], cache.length, config.head_dim // 2
        heads = config.heads + config.kv_heads
        for index, layer in enumerate(self.layers):
            qkv = F.linear(F.rms_norm(x, shape, None, config.norm_eps), layer.inputs).view(rows, -1, config.head_dim)
            pairs = torch.view_as_complex(qkv[:, :heads].unflatten(2, (half, 2)))
            qk = torch.view_as_real(pairs * rotation).flatten(2)
            keys, values = cache.keys[index], cache.values[index]
            keys[:, :, slot] = qk[:, config.heads :]
            values[:, :, slot] = qkv[:, heads:]
            out = F.scaled_dot_product_attention(
                qk[:, : config.heads, None],
                keys[:, :, : slot + 1],
                values[:, :, : slot + 1],
                attn_mask=mask,
                enable_gqa=config.heads != config.kv_heads,
            )
            x = F.linear(out.reshape(rows, -1), layer.output).add_(x)
            gate, up = F.linear(F.rms_norm(x, shape, None, config.norm_eps), layer.gate_up).chunk(2, dim=1)
            x = F.linear(F.silu(gate).mul_(up), layer.down).add_(x)
        cache.length += 1
        return self.norm(x)


def complex_rotation(rope: Rope) -> Tensor:
    """cos + i sin of each rotary pair: [..., head_dim / 2]."""
    half = rope.cos.shape[-1] // 2
    return torch.complex(rope.cos[..., :half], rope.sin[..., :half])


def _pair(x: Tensor) -> Tensor:
    """Reorder the components of heads, the last dimension, from (i, i + half) to adjacent pairs."""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def _fuse(layer: DecoderLayer, head_dim: int) -> _LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    q, k = (_pair_rows(projection.weight, head_dim) for projection in (attention.q_proj, attention.k_proj))
    inputs = torch.cat([q, k, attention.v_proj.weight]) * layer.input_layernorm.weight
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * layer.post_attention_layernorm.weight
    return _LayerWeights(inputs, attention.o_proj.weight, gate_up, mlp.down_proj.weight)


def _pair_rows(weight: Tensor, head_dim: int) -> Tensor:
    """`_pair` on the output rows of every head."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
