"""Decide faster with a trained policy that is left as it is: after EfficientVLA (Yang et al. 2025, arXiv 2506.10100).

    layers          those of the decoder that change their input least are left out
    visual tokens   some stay, for what the prompt looks at and for variety; the decoder never sees the others
    denoising       a flow policy's action expert runs in every N-th denoising step only

Each changes what the policy does, so they are for evaluation and serving. What is left of layers and tokens computes
exactly what a decoder without these layers, and with the other tokens masked, computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.nn.decoder import AttentionCall, Cache, Decoder, DecoderLayer, Rope, rotate


@dataclass(frozen=True, slots=True)
class EfficientParts:
    """What of a policy can be left out.

    decoders: the language model, and what reads its keys and values layer by layer; its `visual` tokens begin at
    `start`. num_inference_steps: 0 for a policy that does not denoise.
    """

    decoders: list[Decoder]
    start: int
    visual: int
    num_inference_steps: int


def layer_importance(decoders: Sequence[Decoder], run: Callable[[], object]) -> list[float]:
    """How much each layer changes its input: 1 - mean cosine similarity of its inputs and outputs, in [0, 2].

    The mean is over all tokens that go through the layer while `run` runs. `decoders` that share their layers' keys and
    values can only lose the same layers: the mean of those that ran the layer. ValueError if none did.
    """
    found = [_Similarity(decoder) for decoder in decoders]
    try:
        with torch.no_grad():
            run()
    finally:
        for similarity in found:
            similarity.remove()
    return [_mean([s.total[index] / s.count[index] for s in found if s.count[index]]) for index in found[0].layers]


class _Similarity:
    """Adds up the cosine similarity of every layer's inputs and outputs, until removed."""

    def __init__(self, decoder: Decoder) -> None:
        self.layers = range(len(decoder.layers))
        self.total, self.count = [0.0] * len(self.layers), [0] * len(self.layers)
        self._handles = [layer.register_forward_hook(self._add) for layer in decoder.layers]

    def _add(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, _, index, read = inputs
        if read is not None:  # the last layer computes these tokens only
            x = x.gather(1, read[..., None].expand_as(output))
        similarity = F.cosine_similarity(x.float(), output.float(), dim=-1)
        self.total[index] += float(similarity.double().sum())
        self.count[index] += similarity.numel()

    def remove(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()


def _mean(similarities: list[float]) -> float:
    if not similarities:
        raise ValueError("nothing went through a layer")
    return 1.0 - sum(similarities) / len(similarities)


def least_important(importance: Sequence[float], count: int) -> list[int]:
    """The `count` layers of least importance, in order; of equal ones the first."""
    return sorted(sorted(range(len(importance)), key=lambda index: importance[index])[:count])


def drop_layers(decoders: Sequence[Decoder], drop: Collection[int]) -> None:
    """Leave out these layers of each decoder, for good; ValueError unless they exist and some layer stays."""
    for decoder in decoders:
        every = range(len(decoder.layers))
        if not set(drop) < set(every):
            raise ValueError(f"layers {sorted(drop)} of {len(every)} cannot be dropped")
        decoder.layers = nn.ModuleList(decoder.layers[index] for index in every if index not in drop)
        decoder.config = replace(decoder.config, layers=len(decoder.layers))


class VisualPruner:
    """Chooses which visual tokens a decoder reads; all else stays, and everything keeps its position.

    Half of the `keep` tokens (rounded up) are those that the prompt looks at most: the attention of its tokens to
    visual ones in the decoder's first layer, averaged over heads and tokens. The others are chosen one by one, each the
    least similar to those that are there (by the largest cosine): a picture's plain parts need one token, not all.
    """

    def __init__(self, decoder: Decoder, start: int, count: int, keep: int) -> None:
        """start, count: where visual tokens are in the sequence; ValueError unless 1 <= keep <= count."""
        if not 1 <= keep <= count:
            raise ValueError(f"cannot keep {keep} of {count} visual tokens")
        self.decoder = decoder
        self.visual = slice(start, start + count)
        self.keep = keep
        self.dropped = count - keep

    def __call__(self, prefix: Tensor, text: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Prefix [N,S,D] without the dropped tokens, and `first` of `Decoder.rope`: the positions of what is left of
        it, and of the prompt's first token.

        text: embeddings [N,T,D] of the prompts, which follow at once; row i is valid up to lengths[i].
        """
        rows, size = prefix.shape[:2]
        with torch.no_grad():
            relevance = self.relevance(prefix, text, lengths)
            kept = select_tokens(relevance, prefix[:, self.visual], self.keep) + self.visual.start
        places = torch.arange(size + 1, device=prefix.device).expand(rows, -1)
        first = torch.cat([places[:, : self.visual.start], kept, places[:, self.visual.stop :]], dim=1)
        return prefix.gather(1, first[:, :-1, None].expand(-1, -1, prefix.shape[2])), first

    def relevance(self, prefix: Tensor, text: Tensor, lengths: Tensor) -> Tensor:
        """float32 [N, count], rows of sum 1: how much the prompt looks at each visual token, among visual tokens."""
        layer = self.decoder.layers[0]
        assert isinstance(layer, DecoderLayer)
        size, words = prefix.shape[1], text.shape[1]
        attention, config = layer.self_attn, self.decoder.config
        rope = self.decoder.rope(size + words, prefix.device)
        split = (-1, config.head_dim)
        queries = attention.q_proj(layer.input_layernorm(text)).unflatten(-1, split).transpose(1, 2)
        keys = attention.k_proj(layer.input_layernorm(prefix[:, self.visual])).unflatten(-1, split).transpose(1, 2)
        queries = rotate(queries, Rope(rope.cos[size:], rope.sin[size:]))
        keys = rotate(keys, Rope(rope.cos[self.visual], rope.sin[self.visual]))
        keys = keys.repeat_interleave(config.heads // config.kv_heads, dim=1)
        share = F.softmax((queries.float() @ keys.float().mT) * config.head_dim**-0.5, dim=-1).mean(dim=1)
        valid = torch.arange(words, device=text.device) < lengths[:, None]
        return share.masked_fill(~valid[..., None], 0.0).sum(dim=1) / lengths[:, None]


def select_tokens(relevance: Tensor, features: Tensor, keep: int) -> Tensor:
    """Tokens to keep, int64 [N, keep], ascending (see `VisualPruner`); relevance [N,S], features [N,S,D].

    Of equal candidates the first is taken.
    """
    relevant = relevance.argsort(dim=1, descending=True, stable=True)[:, : keep - keep // 2]
    unit = F.normalize(features.float(), dim=-1)
    similarity = unit @ unit.mT
    taken = torch.zeros_like(relevance, dtype=torch.bool).scatter(1, relevant, True)
    nearest = similarity.masked_fill(~taken[:, None], -torch.inf).amax(dim=2)
    rows = torch.arange(len(taken), device=taken.device)
    for _ in range(keep // 2):
        chosen = nearest.masked_fill(taken, torch.inf).argmin(dim=1)
        taken[rows, chosen] = True
        nearest = torch.maximum(nearest, similarity[rows, chosen])
    return taken.nonzero()[:, 1].view(len(taken), keep)


class DenoiseReuse:
    """An action expert that computes its layers in every N-th denoising step of a decision only.

    In the other steps each layer's attention and MLP add what they added in the step that was computed last (with
    pi0.5's gates of that step); the action tokens that go in, and the norm at the end, are the step's own. Made anew
    for each decision; called as the expert is, once for each denoising step, in order.
    """

    def __init__(self, expert: Decoder, every: int) -> None:
        self.expert = expert
        self.every = every
        self._calls = 0
        self._added: Tensor | None = None

    def __call__(
        self, x: Tensor, rope: Rope, mask: Tensor | None, cache: Cache, *, causal: bool, condition: Tensor | None
    ) -> Tensor:
        """As `Decoder.forward`."""
        reuse = self._calls % self.every > 0
        self._calls += 1
        if reuse:
            assert self._added is not None
            return self.expert.norm.gated(x + self._added, condition)[0]
        call, out = AttentionCall(rope, rope, mask, cache, causal, condition), x
        for index, layer in enumerate(self.expert.layers):
            out = layer(out, call, index, None)
        self._added = out - x
        return self.expert.norm.gated(out, condition)[0]
