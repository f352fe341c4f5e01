"""The compiled parts of acting with OpenVLA and OpenVLA-OFT: vision, language model, and on a GPU the token steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.compile import Compiled
from embodied_rl.policies.nn.decoder import Decoder, GradientKV, KVCache, Rope

Step = Callable[[Tensor, int, Tensor | None], Tensor]
"""(embeddings [N, D] of action token t, t, mask) -> normalised hidden states [N, D]."""


class Vision(Protocol):
    """`OpenVLAModel`, as far as it is needed here."""

    def patches(self, pixels: list[Tensor], language: Tensor | None) -> Tensor: ...


def compiled_patches(model: Vision, pixels: list[Tensor], language: Tensor | None) -> Tensor:
    """`OpenVLAModel.patches`."""
    return _PATCHES(model, *pixels, language)[0]


def compiled_slots(decoder: Decoder, x: Tensor, mask: Tensor, read: Tensor, first: Tensor | None) -> Tensor:
    """Hidden states of the tokens `read` of x, all of which see what `mask` says; see `Decoder.forward` and `rope`."""
    return _SLOTS(decoder, x, mask, read, first)[0]


def compiled_prefill(decoder: Decoder, prompt: Tensor, lengths: Tensor, first: Tensor | None, cache: KVCache) -> Tensor:
    """Read the prompts as `decode.prefill_and_decode` does: hidden states at their ends [N, D]; fills the cache."""
    width = prompt.shape[1]
    hidden, *found = _PREFILL(decoder, prompt, lengths, first)
    for held, new in zip((cache.keys, cache.values), found, strict=True):
        held[:, :, :, :width] = new.transpose(0, 1)
        held[:, :, :, width:] = 0.0  # what is masked must still be finite
    cache.length = width
    return hidden


def compiled_step(decoder: Decoder, cache: KVCache, rope: Rope, lengths: Tensor) -> Step:
    """Action token `t` of each row: [N, D] -> [N, D]. rope: of the action tokens, [N, steps, head_dim].

    Each step attends to a cache of one and the same size, in which slots that are not written yet are masked (so the
    mask that it is called with does not count); keys and values of its own token are returned and written outside,
    since compiled code changes nothing in place.
    """
    width = cache.length
    keys, values = (part.transpose(0, 1).contiguous() for part in (cache.keys, cache.values))
    slot = torch.arange(keys.shape[3], device=keys.device)
    filled = slot < lengths[:, None]

    def step(x: Tensor, t: int, mask: Tensor | None) -> Tensor:
        seen = filled | ((slot >= width) & (slot < width + t))
        here = (factors[:, t : t + 1].clone(memory_format=torch.contiguous_format) for factors in (rope.cos, rope.sin))
        out, key, value = _STEP(decoder, x, keys, values, F.pad(seen, (0, 1), value=True), *here)
        keys[:, :, :, width + t], values[:, :, :, width + t] = key, value
        return out

    return step


def _patches(model: Vision, one: Tensor, two: Tensor, language: Tensor | None) -> tuple[Tensor, ...]:
    return (model.patches([one, two], language),)


def _slots(decoder: Decoder, x: Tensor, mask: Tensor, read: Tensor, first: Tensor | None) -> tuple[Tensor, ...]:
    return (decoder(x, decoder.rope(x.shape[1], x.device, first), mask, read=read, causal=False),)


def _prefill(decoder: Decoder, x: Tensor, lengths: Tensor, first: Tensor | None) -> tuple[Tensor, ...]:
    """Hidden states [N, D], keys and values [N, layers, kv_heads, T, head_dim]."""
    cache = GradientKV()
    rope = decoder.rope(x.shape[1], x.device, first)
    hidden = decoder(x, rope, cache=cache, read=lengths[:, None] - 1)[:, 0]
    return hidden, *_stacked(cache)


def _step(
    decoder: Decoder, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, ...]:
    """Hidden states [N, D], and keys and values [N, layers, kv_heads, head_dim] of the token x [N, D]."""
    cache = GradientKV.holding(keys.transpose(0, 1), values.transpose(0, 1)).branch()
    hidden = decoder(x[:, None], Rope(cos, sin), seen[:, None, None], cache)[:, 0]
    return hidden, *(part[:, :, :, -1] for part in _stacked(cache))


def _stacked(cache: GradientKV) -> tuple[Tensor, Tensor]:
    """[N, layers, kv_heads, T, head_dim] each."""
    layers = cache.layers()
    return torch.stack([keys for keys, _ in layers], dim=1), torch.stack([values for _, values in layers], dim=1)


_PATCHES, _SLOTS, _PREFILL, _STEP = (Compiled(part) for part in (_patches, _slots, _prefill, _step))
