"""One-token decoding with few operators: for small models, where the cost of calling an operator is most of the time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.decoder import Decoder, DecoderLayer, KVCache, Rope


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """Transposed weights of a layer with both norms folded in; `inputs` yields q, k, their rotated halves, and v."""

    inputs: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor


class FusedDecoder:
    """The same function as `Decoder` for one token a row, from weights fused once and then used for many tokens.

    RMSNorm weights are folded into the next matrix, q, k, v and the half-rotated q and k that RoPE needs come out of one
    product, gate and up out of another, and residual sums are part of the output products.
    """

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self.config = decoder.config
        self.cache = cache
        self.layers = [_fuse(layer, decoder.config.head_dim) for layer in decoder.layers]  # type: ignore[arg-type]
        self.norm = decoder.norm

    def step(self, x: Tensor, rope: Rope, mask: Tensor | None) -> Tensor:
        """Embeddings [N, D] of the next token -> normalised hidden states [N, D]; extends the cache by one slot.

        rope: factors [N, 1, head_dim] of each row's position. mask: bool [N, 1, 1, slots in use after this step].
        """
        config, cache = self.config, self.cache
        shape, rows, slot = (config.dim,), x.shape[0], cache.length
        rotated = (config.heads + config.kv_heads) * config.head_dim
        for index, layer in enumerate(self.layers):
            qkv = F.rms_norm(x, shape, None, config.norm_eps) @ layer.inputs
            plain = qkv[:, :rotated].unflatten(1, (-1, config.head_dim))
            turned = qkv[:, rotated : 2 * rotated].unflatten(1, (-1, config.head_dim))
            qk = torch.addcmul(plain * rope.cos, turned, rope.sin).to(x.dtype)
            keys, values = cache.keys[index], cache.values[index]
            keys[:, :, slot] = qk[:, config.heads :]
            values[:, :, slot] = qkv[:, 2 * rotated :].unflatten(1, (-1, config.head_dim))
            out = F.scaled_dot_product_attention(
                qk[:, : config.heads, None], keys[:, :, : slot + 1], values[:, :, : slot + 1], attn_mask=mask,
                enable_gqa=config.heads != config.kv_heads,
            )
            x = torch.addmm(x, out.reshape(rows, -1), layer.output)
            gate, up = (F.rms_norm(x, shape, None, config.norm_eps) @ layer.gate_up).chunk(2, dim=1)
            x = torch.addmm(x, F.silu(gate) * up, layer.down)
        cache.length += 1
        return self.norm(x)


def _fuse(layer: DecoderLayer, head_dim: int) -> _LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight
    inputs = torch.cat([q, k, _rotate_rows(q, head_dim), _rotate_rows(k, head_dim), v]) * layer.input_layernorm.weight
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * layer.post_attention_layernorm.weight
    return _LayerWeights(inputs.T, attention.o_proj.weight.T, gate_up.T, mlp.down_proj.weight.T)


def _rotate_rows(weight: Tensor, head_dim: int) -> Tensor:
    """The matrix that yields (-second half, first half) of every head's output."""
    first, second = weight.unflatten(0, (-1, head_dim)).chunk(2, dim=1)
    return torch.cat([-second, first], dim=1).flatten(0, 1)
