"""Prefill and autoregressive decoding of action tokens with a static key-value cache; only under no_grad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.decoder import KVCache, Rope
from embodied_rl.policies.fused_decode import FusedDecoder
from embodied_rl.policies.openvla.model import OpenVLAModel
from embodied_rl.policies.tokens import NUM_BINS


@dataclass(frozen=True, slots=True)
class Decoded:
    """tokens int64 [N, L]; log_prob float32 [N, L]; prompt_hidden [N, D]: hidden state at the last prompt token."""

    tokens: Tensor
    log_prob: Tensor
    prompt_hidden: Tensor


def prefill_and_decode(
    model: OpenVLAModel, prompt: Tensor, lengths: Tensor, uniform: Tensor | None, temperature: float
) -> Decoded:
    """Decode L action tokens after each row's prompt.

    prompt: embeddings [N, T, D], row i valid up to lengths[i], padding after it. uniform: float32 [N, L] in [0, 1), or
    None for the argmax. Step t writes cache slot T + t for all rows; a row's padding slots stay masked.
    """
    config, decoder = model.config, model.language_model.model
    rows, width = prompt.shape[:2]
    count = config.num_tokens
    cache = KVCache(config.decoder, rows, width + count - 1, prompt)
    table = decoder.rope(width + count, prompt.device)
    hidden = decoder(prompt, table.at(torch.arange(width, device=prompt.device)), cache=cache)
    hidden = hidden[torch.arange(rows, device=prompt.device), lengths - 1]
    rope = table.at(lengths[:, None] + torch.arange(count, device=prompt.device))
    mask = _valid_slots(lengths, width, count)
    weight = model.language_model.lm_head.weight[model.action_rows]
    logits = weight.new_empty((count, rows, NUM_BINS), dtype=torch.float32)
    tokens = torch.empty((count, rows), dtype=torch.int64, device=prompt.device)
    table_rows = decoder.embed_tokens.weight[model.action_rows]
    slots = model.embed_slots()
    step = _module_step(model, cache) if not config.fused_decode else FusedDecoder(decoder, cache).step
    state = hidden
    for t in range(count):
        if t > 0:
            x = F.embedding(tokens[t - 1], table_rows)
            if slots is not None:
                x = x + slots[t]
            position = Rope(rope.cos[:, t - 1 : t], rope.sin[:, t - 1 : t])
            state = step(x, position, None if mask is None else mask[..., : width + t])
        logits[t] = F.linear(state, weight)
        tokens[t] = choose(logits[t], None if uniform is None else uniform[:, t : t + 1], temperature)
    log_prob = F.log_softmax(logits / temperature, dim=-1).gather(-1, tokens[..., None])[..., 0]
    return Decoded(tokens.T.contiguous(), log_prob.T.contiguous(), hidden)


def _valid_slots(lengths: Tensor, width: int, count: int) -> Tensor | None:
    """bool [N, 1, 1, width + count - 1]: slots that hold a prompt or action token; None when no row has padding."""
    if bool((lengths == width).all()):
        return None
    slot = torch.arange(width + count - 1, device=lengths.device)
    return ((slot < lengths[:, None]) | (slot >= width))[:, None, None]


def choose(logits: Tensor, uniform: Tensor | None, temperature: float) -> Tensor:
    """Token of each row [N]: the smallest whose cumulative probability exceeds the uniform number, or the argmax."""
    if uniform is None:
        return logits.argmax(dim=-1)
    cumulative = F.softmax(logits / temperature, dim=-1).cumsum(dim=-1)
    # rounding may leave the last cumulative value under 1, and under the uniform number
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0].clamp_(max=NUM_BINS - 1)


def _module_step(model: OpenVLAModel, cache: KVCache) -> Callable[..., Tensor]:
    """One token through the decoder's own modules (which may carry adapters): [N, D] -> [N, D]."""

    def step(x: Tensor, position: Rope, mask: Tensor | None) -> Tensor:
        return model.language_model.model(x[:, None], position, mask, cache)[:, 0]

    return step
