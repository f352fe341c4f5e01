"""The SmolVLA network: pi0's, but for the four things that differ.

Blocks of image patches are one token each; the language model reads the state too, after images and prompt; an action
token does not see later ones; and the expert's layers take turns: one attends to prefix and actions as pi0's do, the
next only to the language model's keys and values of that layer, through projections of its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.nn.decoder import (
    AttentionCall,
    Decoder,
    DecoderConfig,
    DecoderLayer,
    SelfAttention,
    rope_factors,
    rotate,
)
from embodied_rl.policies.nn.linear import Linear
from embodied_rl.policies.nn.vision import normalise_images
from embodied_rl.policies.pi0.model import Pi0Model, time_features
from embodied_rl.policies.smolvla.config import SmolVLAModelConfig


class CrossAttention(SelfAttention):
    """Attention of action tokens to what the cache holds of the layer, keys and values projected once more.

    The cached keys are turned by their positions and the projection mixes these, so that the queries' positions count
    from 0 and not from the end of the prefix (as LeRobot has it). Nothing is written to the cache.
    """

    def __init__(self, config: DecoderConfig, horizon: int) -> None:
        super().__init__(config)
        width = config.kv_heads * config.head_dim
        self.k_proj = Linear(width, width, bias=False)
        self.v_proj = Linear(width, width, bias=False)
        self.horizon = horizon

    def forward(self, queries: Tensor, x: Tensor, call: AttentionCall, layer: int) -> Tensor:
        """Attend from `queries` [N,M*H,D], sequences of H action tokens each, to the prefix in the cache."""
        assert call.cache is not None, "there is nothing but the cache to attend to"
        keys, values = call.cache.read(layer)
        k = self._split(self.k_proj(keys.transpose(1, 2).flatten(2)))
        v = self._split(self.v_proj(values.transpose(1, 2).flatten(2)))
        place = torch.arange(queries.shape[1], device=queries.device) % self.horizon
        rope = rope_factors(place, self.config.head_dim, self.config.rope_theta)
        out = F.scaled_dot_product_attention(
            rotate(self._split(self.q_proj(queries)), rope),
            k,
            v,
            attn_mask=None if call.mask is None else call.mask[..., : k.shape[2]],
            enable_gqa=self.config.kv_heads != self.config.heads,
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class SmolVLAModel(Pi0Model):
    """Tensors in, velocities out; no prompts, normalisation or sampling."""

    causal_actions = True
    config: SmolVLAModelConfig

    def __init__(self, config: SmolVLAModelConfig) -> None:
        super().__init__(config)
        dim = config.decoder.dim
        self.projector = Linear(config.vision.dim * config.shuffle**2, dim, bias=False)
        self.state_proj = Linear(config.max_state_dim, dim)
        for index, layer in enumerate(self.expert.layers):
            assert isinstance(layer, DecoderLayer)
            if index % config.self_attn_every:
                layer.self_attn = CrossAttention(config.expert, config.horizon)
        if config.lm_head_rows:
            self.lm_head = Linear(dim, config.lm_head_rows, bias=False).requires_grad_(False)
        with torch.no_grad():  # what it makes is scaled by sqrt(dim), as embeddings are
            self.projector.weight.div_(math.sqrt(dim))

    def embed_images(self, images: Tensor) -> Tensor:
        """uint8 [B,H,W,3], square -> what the language model reads of each [B, patches / shuffle^2, D]."""
        tower = self.config.vision
        pixels = normalise_images(images, tower, torch.float32)
        if pixels.shape[-1] != tower.image_size:
            pixels = F.interpolate(pixels, (tower.image_size, tower.image_size), mode="bilinear", align_corners=False)
        blocks = pixel_shuffle(self.vision(pixels.to(self.dtype)), self.config.shuffle)
        return self.projector(blocks) * math.sqrt(self.config.decoder.dim)

    def _state_reader(self) -> Decoder:
        return self.language

    def _time_features(self, time: Tensor) -> Tensor:
        # the shortest period takes the angle to 1571: in float32 it would be off by 1e-4
        return time_features(time, self.config.expert.dim, torch.float64)


def pixel_shuffle(patches: Tensor, size: int) -> Tensor:
    """Patches of a square image [B, side^2, D] -> blocks of size x size, row by row, [B, (side/size)^2, size^2 * D]."""
    side = math.isqrt(patches.shape[1])
    blocks = patches.view(-1, side // size, size, side // size, size, patches.shape[2])
    return blocks.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
