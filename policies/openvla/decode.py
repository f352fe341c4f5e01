"""Prefill and autoregressive decoding of action tokens with a static key-value cache; only under no_grad."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.compile import uses_graphs
from embodied_rl.policies.cpu import decode
from embodied_rl.policies.nn.decoder import KVCache, Rope
from embodied_rl.policies.nn.linear import Linear, linear_float32
from embodied_rl.policies.openvla.compile import Step, compiled_prefill, compiled_step
from embodied_rl.policies.openvla.model import OpenVLAModel
from embodied_rl.policies.preprocessing.tokens import NUM_BINS

_MAX_LOOP_DIM = 1024
"""Widths above which a step's arithmetic, and not the cost of calling operators, sets its time."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """tokens int64 [N, L]; log_prob float32 [N, L]; prompt_hidden [N, D]: hidden state at the last prompt token."""

    tokens: Tensor
    log_prob: Tensor
    prompt_hidden: Tensor


def prefill_and_decode(
    model: OpenVLAModel,
    prompt: Tensor,
    lengths: Tensor,
    padded: bool,
    uniform: Tensor | None,
    temperature: float,
    first: Tensor | None = None,
    *,
    compiled: bool = False,
) -> Decoded:
    """Decode L action tokens after each row's prompt.

    prompt: embeddings [N, T, D], row i valid up to lengths[i], padding after it; padded: whether any row has some.
    uniform: float32 [N, L] in [0, 1), or None for the argmax. first: see `Decoder.rope`. compiled: the prompt runs
    compiled, and on a GPU the steps (on a CPU that is slower, since each attends to the whole cache). Step t writes
    cache slot T + t for all rows; a row's padding slots stay masked.
    """
    config, decoder = model.config, model.language_model.model
    rows, width = prompt.shape[:2]
    count = config.num_tokens
    table = decoder.rope(width + count, prompt.device, first)
    mask = _valid_slots(lengths, width, count) if padded else None
    rope = table.at(lengths[:, None] + torch.arange(count - 1, device=prompt.device))
    cache = KVCache(decoder.config, rows, width + count - 1, prompt)
    if compiled:
        hidden = compiled_prefill(decoder, prompt, lengths, first, cache)
    else:
        hidden = decoder(prompt, table.first(width), cache=cache, read=lengths[:, None] - 1)[:, 0]
    head = model.language_model.lm_head.weight[model.action_rows]
    embedding = decoder.embed_tokens.weight[model.action_rows]
    slots = model.embed_slots()
    if _in_one_loop(model, prompt):
        tokens, log_prob = decode.decode(
            decoder, head, embedding, slots, hidden, cache, rope, lengths, uniform, temperature
        )
        return Decoded(tokens, log_prob, hidden)
    if compiled and uses_graphs(prompt.device.type):
        step = compiled_step(decoder, cache, rope, lengths)
    else:
        step = _module_step(model, cache, rope)
    logits = torch.empty((count, rows, NUM_BINS), dtype=torch.float32, device=prompt.device)
    tokens = torch.empty((count, rows), dtype=torch.int64, device=prompt.device)
    state = hidden
    for t in range(count):
        if t > 0:
            x = F.embedding(tokens[t - 1], embedding)
            if slots is not None:
                x = x + slots[t]
            state = step(x, t - 1, None if mask is None else mask[..., : width + t])
        logits[t] = linear_float32(state, head)
        tokens[t] = choose(logits[t], None if uniform is None else uniform[:, t : t + 1], temperature)
    log_prob = F.log_softmax(logits / temperature, dim=-1).gather(-1, tokens[..., None])[..., 0]
    return Decoded(tokens.T.contiguous(), log_prob.T.contiguous(), hidden)


def _valid_slots(lengths: Tensor, width: int, count: int) -> Tensor:
    """bool [N, 1, 1, width + count - 1]: slots that hold a prompt or action token."""
    slot = torch.arange(width + count - 1, device=lengths.device)
    return ((slot < lengths[:, None]) | (slot >= width))[:, None, None]


def choose(logits: Tensor, uniform: Tensor | None, temperature: float) -> Tensor:
    """Token of each row [N]: the smallest whose cumulative probability exceeds the uniform number, or the argmax."""
    if uniform is None:
        return logits.argmax(dim=-1)
    cumulative = F.softmax(logits / temperature, dim=-1).cumsum(dim=-1)
    # rounding may leave the last cumulative value under 1, and under the uniform number
    return torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)[:, 0].clamp_(
        max=logits.shape[1] - 1
    )


def token_scores(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log-probs and entropies [...] of `tokens` int64 [...] under tempered `logits` [..., bins]."""
    log_probs = F.log_softmax(logits / temperature, dim=-1)
    chosen = log_probs.gather(-1, tokens[..., None])[..., 0]
    return chosen, -(log_probs.exp() * log_probs).sum(dim=-1)


def _in_one_loop(model: OpenVLAModel, prompt: Tensor) -> bool:
    """Whether `cpu.decode` can take the steps: plain float32 layers of a small model on a CPU, no adapters."""
    decoder = model.language_model.model
    config = decoder.config
    if prompt.device.type != "cpu" or prompt.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
        return False
    if config.activation != "silu" or config.norm_offset or config.condition_dim or config.dim > _MAX_LOOP_DIM:
        return False
    projections = [module for name, module in decoder.named_modules() if name.endswith("_proj")]
    return all(type(module) is Linear for module in projections)


def _module_step(model: OpenVLAModel, cache: KVCache, rope: Rope) -> Step:
    """Action token `t` of each row through the decoder's modules, which may carry adapters: [N, D] -> [N, D]."""

    def step(x: Tensor, t: int, mask: Tensor | None) -> Tensor:
        here = Rope(rope.cos[:, t : t + 1], rope.sin[:, t : t + 1])
        return model.language_model.model(x[:, None], here, mask, cache)[:, 0]

    return step
