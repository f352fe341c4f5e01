"""The OpenVLA network: two fused vision towers, projector, Llama decoder, head rows of the action tokens, value head.

Sequence: BOS, patches of each camera, optional proprio token, rest of the prompt, action tokens. Parameter names are
the published checkpoint's; `proprio_projector`, `camera_embed`, `step_embed`, `dim_embed` and `value_head` are ours.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.efficient import VisualPruner
from embodied_rl.policies.nn.decoder import CausalLM
from embodied_rl.policies.nn.heads import make_value_head
from embodied_rl.policies.nn.linear import Linear, linear_float32
from embodied_rl.policies.nn.vision import ViT, normalise_images
from embodied_rl.policies.openvla.compile import compiled_patches
from embodied_rl.policies.openvla.config import OpenVLAModelConfig
from embodied_rl.policies.preprocessing.tokens import NUM_BINS, token_centres

_ORDINAL_HEAD_SCALE = 0.1


class VisionBackbone(nn.Module):
    """Both towers over the same pixels, each with its own normalisation."""

    def __init__(self, config: OpenVLAModelConfig) -> None:
        super().__init__()
        self.featurizer = ViT(config.featurizer)
        self.fused_featurizer = ViT(config.fused_featurizer)

    @property
    def towers(self) -> list[ViT]:
        """Both, in the order of their features."""
        return [self.featurizer, self.fused_featurizer]

    def pixels(self, images: Tensor) -> list[Tensor]:
        """uint8 [B,H,W,3] -> what each tower sees, [B,3,H,W]."""
        dtype = self.featurizer.pos_embed.dtype
        return [normalise_images(images, tower.config, dtype) for tower in self.towers]

    def forward(self, pixels: list[Tensor], language: Tensor | None = None) -> Tensor:
        """`pixels` and, with FiLM, language [B,D] -> [B, patches, sum of the towers' widths]."""
        return torch.cat([tower(seen, language) for tower, seen in zip(self.towers, pixels, strict=True)], dim=-1)


class Projector(nn.Module):
    """Vision features to the decoder's width: three linear layers with exact GELU between."""

    def __init__(self, vision_dim: int, dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(vision_dim, 4 * vision_dim)
        self.fc2 = Linear(4 * vision_dim, dim)
        self.fc3 = Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


class ProprioProjector(nn.Module):
    """Normalised proprio to one token: two linear layers with exact GELU between."""

    def __init__(self, proprio_dim: int, dim: int) -> None:
        super().__init__()
        self.fc1 = Linear(proprio_dim, dim)
        self.fc2 = Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class OpenVLAModel(nn.Module):
    """Tensors in, hidden states and action logits out; no prompts, codecs or sampling."""

    pruner: VisualPruner | None = None
    """Leaves out visual tokens, for evaluation and serving."""

    def __init__(self, config: OpenVLAModelConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.decoder.dim
        self.vision_backbone = VisionBackbone(config)
        self.projector = Projector(config.featurizer.dim + config.fused_featurizer.dim, dim)
        self.language_model = CausalLM(config.decoder)
        if config.use_proprio:
            self.proprio_projector = ProprioProjector(config.proprio_dim, dim)
        if config.learned_positions:
            self.camera_embed = nn.Parameter(torch.randn(config.num_cameras, dim) * 0.3)
            self.step_embed = nn.Parameter(torch.randn(config.chunk_len, dim) * 0.3)
            self.dim_embed = nn.Parameter(torch.randn(config.action_dim, dim) * 0.3)
        self.value_head = make_value_head(dim, config.value_hidden)
        if config.ordinal_init and self.projector.fc1.weight.device.type != "meta":
            self._initialise()

    @property
    def action_rows(self) -> slice:
        """Vocabulary rows of the 256 action tokens."""
        end = self.config.action_token_end
        return slice(end - NUM_BINS, end)

    @torch.no_grad()
    def _initialise(self) -> None:
        """Start the action rows smooth."""
        embedding, head = self.language_model.model.embed_tokens, self.language_model.lm_head
        embedding.weight.normal_(0.0, 0.5)
        smooth = ordinal_features(self.config.decoder.dim)
        embedding.weight[self.action_rows] = 0.5 * smooth
        # rotated, or the residual stream would start by predicting the token that it has just read
        rotation = torch.linalg.qr(torch.randn(smooth.shape[1], smooth.shape[1])).Q
        head.weight[self.action_rows] = _ORDINAL_HEAD_SCALE * smooth @ rotation

    def patches(self, pixels: list[Tensor], language: Tensor | None) -> Tensor:
        """`VisionBackbone.pixels`, and language [B,D] with FiLM -> embeddings [B, patches, D]."""
        return self.projector(self.vision_backbone(pixels, language))

    def embed_prefix(
        self, images: Tensor, proprio: Tensor, bos_id: int, language: Tensor | None = None, *, compiled: bool = False
    ) -> Tensor:
        """uint8 [N,V,H,W,3] and normalised proprio [N,P] -> BOS, patches and proprio token: [N, text_offset, D].

        language: [N,D] for vision towers with FiLM. compiled: `patches` runs compiled.
        """
        rows, cameras = images.shape[:2]
        if language is not None:
            language = language.repeat_interleave(cameras, dim=0)
        pixels = self.vision_backbone.pixels(images.flatten(0, 1))
        patches = compiled_patches(self, pixels, language) if compiled else self.patches(pixels, language)
        patches = patches.unflatten(0, (rows, cameras))
        if self.config.learned_positions:
            patches = patches + self.camera_embed[:, None]
        bos = self.language_model.model.embed_tokens.weight[bos_id]
        parts = [bos.expand(rows, 1, -1), patches.flatten(1, 2)]
        if self.config.use_proprio:
            parts.append(self.proprio_projector(proprio.to(patches.dtype))[:, None])
        return torch.cat(parts, dim=1)

    def prune(self, prefix: Tensor, text: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """`prefix` without the visual tokens that are left out, and its positions (see `VisualPruner`), if any are."""
        return (prefix, None) if self.pruner is None else self.pruner(prefix, text, lengths)

    def embed_slots(self) -> Tensor | None:
        """[L, D], added to the input from which action token t is predicted (t > 0), or None."""
        if not self.config.learned_positions:
            return None
        slots = (self.step_embed[:, None] + self.dim_embed).flatten(0, 1)
        return torch.cat([torch.zeros_like(slots[:1]), slots[1:]])

    def action_logits(self, hidden: Tensor) -> Tensor:
        """[..., D] -> logits of the 256 action tokens only, computed in float32."""
        return linear_float32(hidden, self.language_model.lm_head.weight[self.action_rows])

    def value(self, hidden: Tensor) -> Tensor:
        """Hidden state at the last prompt token [N, D] -> float32 [N]."""
        return self.value_head(hidden.to(next(self.value_head.parameters()).dtype))[:, 0].float()


def ordinal_features(dim: int) -> Tensor:
    """float32 [256, dim], root mean square 1: sines and cosines of a token's value, low frequencies strongest.

    Wavelengths fall geometrically from 4 to 1/8 in units of the action; amplitudes with its square root.
    """
    value = torch.from_numpy(token_centres())
    waves = torch.logspace(math.log10(0.5), math.log10(16.0), dim // 2)
    angle = math.pi * value[:, None] * waves
    features = torch.cat([angle.sin(), angle.cos()], dim=-1) * waves.pow(-0.5).repeat(2)
    return features / features.pow(2).mean().sqrt()
