"""The ACT network: a ResNet and a transformer encoder read, a transformer decoder regresses a chunk of actions.

Parameters have the names of LeRobot's class; `log_std` and `value_head` are ours alone, for reinforcement learning.
There is no dropout: what an update computes must be what acting computed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.act import INITIAL_STD, LOG_STD
from embodied_rl.policies.act.config import ACTModelConfig
from embodied_rl.policies.act.resnet import ResNet
from embodied_rl.policies.nn.checkpointing import run_layer
from embodied_rl.policies.nn.heads import make_value_head
from embodied_rl.policies.nn.linear import Linear, linear

_BASE = 10000.0


class Latent(NamedTuple):
    """The distribution of the latent that demonstrated actions have: mean and log-variance, [N, latent_dim] both."""

    mean: Tensor
    log_var: Tensor


class Read(NamedTuple):
    """What the encoder makes of an observation: tokens [N,S,D] and their positions [S,D]."""

    tokens: Tensor
    positions: Tensor


class Attention(nn.Module):
    """Multi-head attention with `nn.MultiheadAttention`'s parameters."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None = None) -> Tensor:
        """query [N,T,D], key and value [N,S,D], valid bool [N,S] (None: all) -> [N,T,D]."""
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (
            linear(x, weight, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        q = q.expand(k.shape[0], -1, -1, -1)
        mask = None if valid is None else valid[:, None, None, :]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    """What the two kinds of layers share: the MLP, and where the norms stand."""

    def __init__(self, config: ACTModelConfig, norms: int) -> None:
        super().__init__()
        self.self_attn = Attention(config.dim, config.heads)
        self.linear1, self.linear2 = Linear(config.dim, config.mlp_dim), Linear(config.mlp_dim, config.dim)
        for number in range(1, norms + 1):
            self.add_module(f"norm{number}", nn.LayerNorm(config.dim))
        self.pre_norm = config.pre_norm
        self.activation = F.relu if config.activation == "relu" else F.gelu

    def before(self, x: Tensor, number: int) -> Tensor:
        """What sublayer `number` reads of the residual stream `x`."""
        return self.get_submodule(f"norm{number}")(x) if self.pre_norm else x

    def after(self, x: Tensor, number: int) -> Tensor:
        """The residual stream behind sublayer `number`."""
        return x if self.pre_norm else self.get_submodule(f"norm{number}")(x)

    def mlp(self, x: Tensor, number: int) -> Tensor:
        """The MLP as sublayer `number`, with its residual."""
        return self.after(x + self.linear2(self.activation(self.linear1(self.before(x, number)))), number)


class EncoderLayer(_Layer):
    """Self-attention and an MLP; positions are added to queries and keys only, as in DETR."""

    def __init__(self, config: ACTModelConfig) -> None:
        super().__init__(config, 2)

    def forward(self, x: Tensor, positions: Tensor, valid: Tensor | None = None) -> Tensor:
        """x [N,S,D], positions [S,D], valid bool [N,S] -> [N,S,D]."""
        seen = self.before(x, 1)
        placed = seen + positions
        x = self.after(x + self.self_attn(placed, placed, seen, valid), 1)
        return self.mlp(x, 2)


class DecoderLayer(_Layer):
    """Self-attention of the control steps, attention to what was read, and an MLP."""

    def __init__(self, config: ACTModelConfig) -> None:
        super().__init__(config, 3)
        self.multihead_attn = Attention(config.dim, config.heads)

    def forward(self, x: Tensor, steps: Tensor, read: Read) -> Tensor:
        """x [N,H,D] or, while it is the same for all rows, [1,H,D]; steps [H,D] -> [N,H,D]."""
        seen = self.before(x, 1)
        placed = seen + steps
        x = self.after(x + self.self_attn(placed, placed, seen), 1)
        keys = read.tokens + read.positions
        x = self.after(x + self.multihead_attn(self.before(x, 2) + steps, keys, read.tokens), 2)
        return self.mlp(x, 3)


class Encoder(nn.Module):
    """A stack of `EncoderLayer`."""

    def __init__(self, config: ACTModelConfig, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(layers))
        self.norm = nn.LayerNorm(config.dim) if config.pre_norm else nn.Identity()
        self.recompute = False

    def forward(self, x: Tensor, positions: Tensor, valid: Tensor | None = None) -> Tensor:
        """As `EncoderLayer.forward`."""
        for layer in self.layers:
            x = run_layer(layer, (x, positions, valid), self.recompute)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of `DecoderLayer`."""

    def __init__(self, config: ACTModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.norm = nn.LayerNorm(config.dim)

    def forward(self, steps: Tensor, read: Read) -> Tensor:
        """steps [H,D] -> [N,H,D]."""
        x = torch.zeros_like(steps)[None]
        for layer in self.layers:
            x = layer(x, steps, read)
        return self.norm(x)


class ACTModel(nn.Module):
    """Normalised tensors in, normalised actions out.

    Example:
        >>> model = ACTModel(nano())
        >>> model.actions(model.read(torch.zeros(1, 2, 3, 64, 64), torch.zeros(1, 8))).shape
        torch.Size([1, 8, 7])
    """

    def __init__(self, config: ACTModelConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.dim
        if config.use_vae:
            self.vae_encoder = Encoder(config, config.vae_layers)
            self.vae_encoder_cls_embed = nn.Embedding(1, dim)
            if config.proprio_dim:
                self.vae_encoder_robot_state_input_proj = Linear(config.proprio_dim, dim)
            self.vae_encoder_action_input_proj = Linear(config.action_dim, dim)
            self.vae_encoder_latent_output_proj = Linear(dim, 2 * config.latent_dim)
        self.backbone = ResNet(config.backbone_width, config.backbone_blocks)
        self.encoder = Encoder(config, config.encoder_layers)
        self.decoder = Decoder(config)
        if config.proprio_dim:
            self.encoder_robot_state_input_proj = Linear(config.proprio_dim, dim)
        self.encoder_latent_input_proj = Linear(config.latent_dim, dim)
        self.encoder_img_feat_input_proj = nn.Conv2d(self.backbone.channels, dim, 1)
        self.encoder_1d_feature_pos_embed = nn.Embedding(1 + (config.proprio_dim > 0), dim)
        self.decoder_pos_embed = nn.Embedding(config.horizon, dim)
        self.action_head = Linear(dim, config.action_dim)
        self.log_std = nn.Parameter(torch.full((config.horizon, config.action_dim), math.log(INITIAL_STD)))
        self.value_head = make_value_head(dim, config.value_hidden)
        for part in (self.encoder, self.decoder):
            for parameter in part.parameters():
                if parameter.ndim > 1:
                    nn.init.xavier_uniform_(parameter)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.log_std.device

    def read(self, images: Tensor, state: Tensor, latent: Tensor | None = None) -> Read:
        """Encode an observation.

        Args:
            images: float32 [N,V,3,h,w], normalised.
            state: float32 [N,P], normalised.
            latent: [N, latent_dim], None for zeros.
        """
        rows, dim = len(images), self.config.dim
        if latent is None:
            latent = images.new_zeros((rows, self.config.latent_dim))
        vectors = [self.encoder_latent_input_proj(latent)]
        if self.config.proprio_dim:
            vectors.append(self.encoder_robot_state_input_proj(state))
        features = self.encoder_img_feat_input_proj(self.backbone(images.flatten(0, 1)))
        places = grid_positions(features.shape[2], features.shape[3], dim, images.device)
        pixels = features.flatten(2).transpose(1, 2).reshape(rows, -1, dim)
        tokens = torch.cat([torch.stack(vectors, dim=1), pixels], dim=1)
        positions = torch.cat([self.encoder_1d_feature_pos_embed.weight, places.repeat(self.config.num_cameras, 1)])
        return Read(self.encoder(tokens, positions), positions)

    def actions(self, read: Read) -> Tensor:
        """The normalised chunk, float32 [N,H,A]."""
        return self.action_head(self.decoder(self.decoder_pos_embed.weight, read)).float()

    def latent(self, state: Tensor, actions: Tensor, valid: Tensor | None = None) -> Latent:
        """The latent's distribution given what was demonstrated.

        Args:
            state: float32 [N,P], normalised.
            actions: float32 [N,H,A], normalised.
            valid: bool [N,H], the steps that count; None: all.
        """
        rows = len(actions)
        parts = [self.vae_encoder_cls_embed.weight.expand(rows, 1, -1)]
        if self.config.proprio_dim:
            parts.append(self.vae_encoder_robot_state_input_proj(state)[:, None])
        first = len(parts)
        tokens = torch.cat([*parts, self.vae_encoder_action_input_proj(actions)], dim=1)
        if valid is not None:
            valid = F.pad(valid, (first, 0), value=True)
        positions = sequence_positions(tokens.shape[1], self.config.dim).to(tokens.device)
        seen = self.vae_encoder(tokens, positions, valid)[:, 0]
        return Latent(*self.vae_encoder_latent_output_proj(seen).float().chunk(2, dim=-1))

    def std(self) -> Tensor:
        """Standard deviation of the normalised actions that are sampled, [H,A]."""
        return self.log_std.clamp(*LOG_STD).exp()

    def value(self, summary: Tensor) -> Tensor:
        """float32 [N], from the mean of the encoder's tokens [N,D]."""
        return self.value_head(summary)[:, 0].float()


def sequence_positions(count: int, dim: int) -> Tensor:
    """Sines and cosines of the places of a sequence, float32 [count, dim], interleaved (Vaswani et al. 2017)."""
    return _waves(torch.arange(count, dtype=torch.float64), dim).float()


def grid_positions(height: int, width: int, dim: int, device: torch.device) -> Tensor:
    """Positions of a feature map, float32 [height * width, dim], row by row, as DETR has them (Carion et al. 2020).

    A half of the numbers is of the row, the other of the column; both count from 1 and end at 2 pi.
    """
    rows, columns = (
        _waves(
            torch.arange(1, count + 1, dtype=torch.float32, device=device) / (count + 1e-6) * (2 * math.pi), dim // 2
        )
        for count in (height, width)
    )
    rows, columns = rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)


def _waves(places: Tensor, dim: int) -> Tensor:
    """[count] -> [count, dim]: sine and cosine of each place at dim / 2 wavelengths, interleaved."""
    lengths = _BASE ** (torch.arange(0, dim, 2, dtype=places.dtype, device=places.device) / dim)
    angles = places[:, None] / lengths
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
