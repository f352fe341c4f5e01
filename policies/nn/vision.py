"""A pre-norm vision transformer with timm's parameter names, so that DINOv2 and SigLIP weights load by key.

Sources: Dosovitskiy et al. 2021 (ViT), Oquab et al. 2023 and Darcet et al. 2024 (DINOv2, register tokens, LayerScale),
Zhai et al. 2023 (SigLIP). GELU is exact, as in timm, unless the config says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.nn.checkpointing import run_layer
from embodied_rl.policies.nn.linear import Linear, linear

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ViTConfig:
    """One vision tower. `depth - unused_blocks` blocks run; their output is the feature map."""

    image_size: int
    """Height and width of the input in pixels; a multiple of `patch_size`."""
    patch_size: int
    """Height and width of a patch in pixels."""
    dim: int
    """Width of a token."""
    depth: int
    """Blocks held in the checkpoint."""
    heads: int
    """Attention heads; divides `dim`."""
    mlp_dim: int
    """Hidden width of a block's MLP."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Subtracted from RGB in [0, 1]."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Divides RGB after the mean is subtracted."""
    class_token: bool = False
    """Prepend a class token (dropped from the output)."""
    register_tokens: int = 0
    """Register tokens after the class token (dropped from the output)."""
    layer_scale: float | None = None
    """Initial value of the per-channel scale of each residual branch; None has no scale."""
    pos_embed_std: float = 0.02
    """Standard deviation of the initial position embedding."""
    unused_blocks: int = 0
    """Last blocks that are held, frozen and never run (OpenVLA reads the last block but one)."""
    final_norm: bool = False
    """Hold timm's final norm, frozen and never run, so that a published checkpoint loads and saves whole."""
    attention_pool: bool = False
    """Hold timm's attention pooling head (SigLIP), frozen and never run, for the same reason."""
    output_norm: bool = False
    """Normalise the output with that final norm, which then is trained (SigLIP in PaliGemma)."""
    gelu_tanh: bool = False
    """Approximate GELU by tanh (SigLIP in PaliGemma)."""
    film_dim: int | None = None
    """Width of a language vector that modulates each block between attention and MLP (FiLM); None has no FiLM."""

    @property
    def num_patches(self) -> int:
        """Output tokens an image."""
        return (self.image_size // self.patch_size) ** 2


class PatchEmbed(nn.Module):
    """Non-overlapping patches to tokens."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.patch = config.patch_size
        self.proj = nn.Conv2d(3, config.dim, config.patch_size, config.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """[B,3,H,W] -> [B, patches, dim]; one product over unfolded patches, equal to the strided convolution."""
        batch, _, height, width = images.shape
        p = self.patch
        patches = images.view(batch, 3, height // p, p, width // p, p).permute(0, 2, 4, 1, 3, 5)
        flat = patches.reshape(batch, (height // p) * (width // p), 3 * p * p)
        return linear(flat, self.proj.weight.flatten(1), self.proj.bias)


class LayerScale(nn.Module):
    """Learned scale per channel (Touvron et al. 2021); `scale_factor` is OpenVLA's key for timm's `gamma`."""

    def __init__(self, dim: int, init: float) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((dim,), init))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class VisionAttention(nn.Module):
    """Bidirectional multi-head attention."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim)
        self.proj = Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(batch, tokens, dim))


class VisionMlp(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.fc1 = Linear(config.dim, config.mlp_dim)
        self.fc2 = Linear(config.mlp_dim, config.dim)
        self.approximate = "tanh" if config.gelu_tanh else "none"

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))


class VisionBlock(nn.Module):
    """Pre-norm attention and MLP, each with an optional LayerScale; between them optionally FiLM.

    FiLM: x * (1 + scale(language)) + shift(language), the same for every token (Perez et al. 2018; in a ViT: Kim et al.
    2025, OpenVLA-OFT).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        scale = config.layer_scale
        self.norm1 = nn.LayerNorm(config.dim, eps=1e-6)
        self.attn = VisionAttention(config.dim, config.heads)
        self.ls1 = nn.Identity() if scale is None else LayerScale(config.dim, scale)
        self.norm2 = nn.LayerNorm(config.dim, eps=1e-6)
        self.mlp = VisionMlp(config)
        self.ls2 = nn.Identity() if scale is None else LayerScale(config.dim, scale)
        if config.film_dim is not None:
            self.scale = Linear(config.film_dim, config.dim)
            self.shift = Linear(config.film_dim, config.dim)

    def forward(self, x: Tensor, language: Tensor | None = None) -> Tensor:
        """[B, tokens, dim] and, with FiLM, language [B, film_dim] -> [B, tokens, dim]."""
        x = x + self.ls1(self.attn(self.norm1(x)))
        if language is not None:
            x = x * (1 + self.scale(language)[:, None]) + self.shift(language)[:, None]
        return x + self.ls2(self.mlp(self.norm2(x)))


class AttentionPool(nn.Module):
    """The parameters of timm's `AttentionPoolLatent`; held for checkpoints, so it has no forward."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.zeros(1, 1, config.dim))
        self.q = Linear(config.dim, config.dim)
        self.kv = Linear(config.dim, 2 * config.dim)
        self.proj = Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=1e-6)
        self.mlp = VisionMlp(config)


class ViT(nn.Module):
    """Images to patch features.

    The position embedding covers patches only (timm's `no_embed_class`, as in DINOv2 with registers).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if config.image_size % config.patch_size or config.dim % config.heads:
            raise ValueError(f"image_size must be a multiple of patch_size and dim of heads: {config}")
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.pos_embed = nn.Parameter(torch.randn(1, config.num_patches, config.dim) * config.pos_embed_std)
        if config.class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, config.dim))
        if config.register_tokens:
            self.reg_token = nn.Parameter(torch.zeros(1, config.register_tokens, config.dim))
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        if config.final_norm or config.output_norm:
            self.norm = nn.LayerNorm(config.dim, eps=1e-6).requires_grad_(config.output_norm)
        if config.attention_pool:
            self.attn_pool = AttentionPool(config).requires_grad_(False)
        for block in self.blocks[config.depth - config.unused_blocks :]:
            block.requires_grad_(False)
        self.recompute = False

    def forward(self, images: Tensor, language: Tensor | None = None) -> Tensor:
        """Normalised images [B,3,H,W] and, with FiLM, language [B, film_dim] -> patch features [B, patches, dim].

        `recompute` saves memory under gradients: blocks keep only their input.
        """
        config = self.config
        if (language is None) != (config.film_dim is None):
            raise ValueError("a language vector goes with FiLM, and only with it")
        x = self.patch_embed(images) + self.pos_embed
        prefix = []
        if config.class_token:
            prefix.append(self.cls_token.expand(x.shape[0], -1, -1))
        if config.register_tokens:
            prefix.append(self.reg_token.expand(x.shape[0], -1, -1))
        if prefix:
            x = torch.cat([*prefix, x], dim=1)
        for block in self.blocks[: config.depth - config.unused_blocks]:
            x = run_layer(block, (x, language), self.recompute)
        x = x[:, int(config.class_token) + config.register_tokens :]
        return self.norm(x) if config.output_norm else x


def normalise_images(images: Tensor, tower: ViTConfig, dtype: torch.dtype) -> Tensor:
    """uint8 [B,H,W,3] -> the tower's normalised [B,3,H,W] of `dtype`."""
    device = images.device
    mean = torch.tensor(tower.mean, device=device) * 255.0
    scale = 1.0 / (torch.tensor(tower.std, device=device) * 255.0)
    # planes first: arithmetic along rows of pixels is faster than along three colours, and rounds alike
    planes = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    return planes.sub_(mean[:, None, None]).mul_(scale[:, None, None]).to(dtype)
