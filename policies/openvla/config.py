"""The OpenVLA architecture as data (Kim et al. 2024; OpenVLA-OFT's wrist image and proprio token: Kim et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.nn.decoder import DecoderConfig
from embodied_rl.policies.nn.vision import ViTConfig
from embodied_rl.policies.preprocessing.fit import ImageFit
from embodied_rl.policies.preprocessing.tokens import NUM_BINS, ProprioNorm
from embodied_rl.utils.dataclass_io import read_dataclass

ModelConfig = TypeVar("ModelConfig", bound="OpenVLAModelConfig")
_HALF = (0.5, 0.5, 0.5)
_OBSOLETE = "fused_decode"  # older folders say it; whether decoding runs in one loop is no property of the model


@dataclass(frozen=True)
class OpenVLAModelConfig:
    """Everything that fixes the parameters of an OpenVLA policy and how its inputs are laid out."""

    featurizer: ViTConfig
    """First vision tower (DINOv2 in the published model)."""
    fused_featurizer: ViTConfig
    """Second vision tower (SigLIP); same image size and patch count as the first, features concatenated."""
    decoder: DecoderConfig
    """Language model."""
    action_token_end: int
    """One past the last of the 256 vocabulary rows that stand for action bins; text ids lie below these rows."""
    append_token: int | None
    """Token id appended to a prompt that does not end with it; None appends nothing."""
    chunk_len: int
    """Control steps decoded in one decision (K)."""
    action_dim: int = 7
    """Dimensions of an action (A); each is one token."""
    clip_actions: bool = True
    """Cut actions to [-1, 1], which are LIBERO's bounds; off where an env or a data set has bounds of its own."""
    num_cameras: int = 1
    """Cameras, in the order of the observation; each camera's patches follow the previous one's."""
    use_proprio: bool = False
    """Add one token after the patches, from the normalised proprio through a two-layer MLP."""
    proprio_dim: int = 8
    """Dimensions of the proprio vector (P)."""
    proprio_norm: ProprioNorm = "mean_std"
    """How proprio is normalised: by mean and deviation, or from its 1st and 99th percentiles to [-1, 1], clipped."""
    center_crop: float | None = None
    """Share of each image's area that is cut out of its middle and enlarged again, as at test time of models that were
    trained on random crops; None uses the whole image."""
    learned_positions: bool = False
    """Add learned vectors to each camera's patches and to each action slot. Not in OpenVLA; a small model that
    starts from nothing learns faster with them."""
    ordinal_init: bool = False
    """Start the 256 action rows from smooth features of the bin centre, so that near bins start alike."""
    value_hidden: tuple[int, int] = (512, 128)
    """Hidden widths of the value head."""
    gripper_zero_one: bool = False
    """The last action dimension was trained as 1 = open, 0 = close, and is mapped to the simulator's -1 and +1."""

    def __post_init__(self) -> None:
        first, second = self.featurizer, self.fused_featurizer
        if (first.image_size, first.num_patches) != (second.image_size, second.num_patches):
            raise ValueError("both vision towers must have the same image size and number of patches")
        if not NUM_BINS <= self.action_token_end <= self.decoder.vocab_size:
            raise ValueError("action_token_end must leave 256 rows below it and lie within the vocabulary")
        if self.center_crop is not None and not 0 < self.center_crop <= 1:
            raise ValueError("center_crop must lie in (0, 1]")

    @property
    def image_size(self) -> int:
        """Height and width in pixels of every camera's image."""
        return self.featurizer.image_size

    @property
    def image_fit(self) -> ImageFit:
        """How images of another shape are made square, as OpenVLA's authors do."""
        return "stretch"

    @property
    def num_tokens(self) -> int:
        """Action tokens a decision (L)."""
        return self.chunk_len * self.action_dim

    @property
    def text_offset(self) -> int:
        """Tokens before the prompt's text: BOS, patches, proprio."""
        return 1 + self.num_cameras * self.featurizer.num_patches + int(self.use_proprio)


def nano(
    *,
    image_size: int = 64,
    patch_size: int = 16,
    vision_dim: int = 64,
    vision_depth: int = 2,
    dim: int = 128,
    layers: int = 2,
    heads: int = 2,
    mlp_dim: int = 352,
    text_vocab: int = 128,
    chunk_len: int = 8,
    num_cameras: int = 2,
    use_proprio: bool = True,
) -> OpenVLAModelConfig:
    """About 1 M parameters: trains from nothing on a CPU. Two cameras and proprio, as OpenVLA-OFT."""
    dino = ViTConfig(
        image_size=image_size,
        patch_size=patch_size,
        dim=vision_dim,
        depth=vision_depth,
        heads=max(1, vision_dim // 32),
        mlp_dim=4 * vision_dim,
        layer_scale=1.0,
        pos_embed_std=0.3,
    )
    vocab = text_vocab + NUM_BINS
    decoder = DecoderConfig(
        vocab_size=vocab, dim=dim, layers=layers, heads=heads, kv_heads=heads, head_dim=dim // heads, mlp_dim=mlp_dim
    )
    return OpenVLAModelConfig(
        featurizer=dino,
        fused_featurizer=replace(dino, mean=_HALF, std=_HALF, layer_scale=None),
        decoder=decoder,
        action_token_end=vocab,
        append_token=None,
        chunk_len=chunk_len,
        num_cameras=num_cameras,
        use_proprio=use_proprio,
        learned_positions=True,
        ordinal_init=True,
        value_hidden=(dim, dim // 2),
    )


def tiny(*, image_size: int = 112, chunk_len: int = 8, num_cameras: int = 2) -> OpenVLAModelConfig:
    """About 6 M parameters: a small GPU, or a patient CPU."""
    return nano(
        image_size=image_size,
        patch_size=14,
        vision_dim=128,
        vision_depth=4,
        dim=256,
        layers=4,
        heads=4,
        mlp_dim=704,
        text_vocab=256,
        chunk_len=chunk_len,
        num_cameras=num_cameras,
    )


def openvla_7b() -> OpenVLAModelConfig:
    """The published model: DINOv2-L/14 with registers, SigLIP-So400m/14, Llama-2-7B; 7,541,237,184 parameters."""
    dino = ViTConfig(
        image_size=224,
        patch_size=14,
        dim=1024,
        depth=24,
        heads=16,
        mlp_dim=4096,
        class_token=True,
        register_tokens=4,
        layer_scale=1e-5,
        unused_blocks=1,
        final_norm=True,
    )
    siglip = ViTConfig(
        image_size=224,
        patch_size=14,
        dim=1152,
        depth=27,
        heads=16,
        mlp_dim=4304,
        mean=_HALF,
        std=_HALF,
        unused_blocks=1,
        final_norm=True,
        attention_pool=True,
    )
    llama = DecoderConfig(
        vocab_size=32064, dim=4096, layers=32, heads=32, kv_heads=32, head_dim=128, mlp_dim=11008, norm_eps=1e-6
    )
    return OpenVLAModelConfig(
        featurizer=dino,
        fused_featurizer=siglip,
        decoder=llama,
        action_token_end=32000,
        append_token=29871,
        chunk_len=1,
        gripper_zero_one=True,
    )


_PRESETS: dict[str, Callable[[], OpenVLAModelConfig]] = {"nano": nano, "tiny": tiny, "7b": openvla_7b}


def preset(name: str) -> OpenVLAModelConfig:
    """The preset `nano`, `tiny` or `7b`; UserError for another name."""
    if name not in _PRESETS:
        raise UserError(f"unknown OpenVLA preset '{name}'.{suggest(name, _PRESETS)}")
    return _PRESETS[name]()


def config_from_json(data: Any, kind: type[ModelConfig]) -> ModelConfig:
    """A config of class `kind` from what `dataclasses.asdict` made of one.

    UserError names an unknown, missing or unusable key.
    """
    known = {key: value for key, value in data.items() if key != _OBSOLETE} if isinstance(data, dict) else data
    return read_dataclass(kind, known, where="model", source="config.json")
