"""One-token decoding on a CPU: five products a layer, and compiled loops between them.

For small models, where calling an operator costs more than its arithmetic. Other threads act or learn meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_rl.policies import cpu_loops
from embodied_rl.policies.decoder import Decoder, DecoderLayer, KVCache, Rope
from embodied_rl.types import Array


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    """Matrices as products read them, [in, out] (`inputs` yields q, k and v), and the weights of both norms [D]."""

    inputs: Tensor
    output: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    norms: tuple[Array, Array]


class CpuDecoder:
    """The same function as `Decoder` for one token a row, with plain float32 layers; only under no_grad.

    cache: holds the prompts, row i's in slots [0, lengths[i]) of `cache.length`, and padding after it. rope: of the
    tokens to come, [N, steps, head_dim].
    """

    def __init__(self, decoder: Decoder, cache: KVCache, rope: Rope, lengths: Tensor) -> None:
        config, rows = decoder.config, len(lengths)
        self.layers = [_weights(layer) for layer in decoder.layers]  # type: ignore[arg-type]
        self.norm = decoder.norm
        self.cache = cache
        self._prompt = cache.length
        self._lengths = lengths.numpy()
        self._cos, self._sin = (part.transpose(0, 1).contiguous().numpy() for part in (rope.cos, rope.sin))
        self._keys, self._values = cache.keys.numpy(), cache.values.numpy()
        self._eps = config.norm_eps
        self._scale = torch.empty(rows).numpy()
        self._normed = torch.empty(rows, config.dim)
        self._qkv = torch.empty(rows, (config.heads + 2 * config.kv_heads) * config.head_dim)
        self._attended = torch.empty(rows, config.heads * config.head_dim)
        self._gate, self._up, self._hidden = (torch.empty(rows, config.mlp_dim) for _ in range(3))

    def step(self, x: Tensor, t: int) -> Tensor:
        """Embeddings [N, D] of token t to come -> normalised hidden states [N, D]; extends the cache by one slot.

        Overwrites `x`.
        """
        stream, slot = x.numpy(), self.cache.length
        normed, qkv, attended = self._normed.numpy(), self._qkv.numpy(), self._attended.numpy()
        gate, up, hidden = self._gate.numpy(), self._up.numpy(), self._hidden.numpy()
        for index, layer in enumerate(self.layers):
            cpu_loops.rms_norm(stream, layer.norms[0], self._eps, normed, self._scale)
            torch.mm(self._normed, layer.inputs, out=self._qkv)
            cpu_loops.attend(
                qkv, self._cos[t], self._sin[t], self._keys[index], self._values[index], self._lengths, self._prompt,
                slot, attended,
            )  # fmt: skip
            x.addmm_(self._attended, layer.output)
            cpu_loops.rms_norm(stream, layer.norms[1], self._eps, normed, self._scale)
            torch.mm(self._normed, layer.gate, out=self._gate)
            torch.mm(self._normed, layer.up, out=self._up)
            cpu_loops.swiglu(gate, up, hidden)
            x.addmm_(self._hidden, layer.down)
        self.cache.length += 1
        return self.norm(x)


def _weights(layer: DecoderLayer) -> _LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    projections = attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj
    inputs = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    norms = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    return _LayerWeights(
        inputs.t(), *(projection.weight.t() for projection in projections),
        norms=(norms[0].detach().clone().numpy(), norms[1].detach().clone().numpy()),
    )  # fmt: skip
