"""The SmolVLA architecture as data (Shukor et al. 2025): pi0's parts, arranged differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.nn.decoder import DecoderConfig
from embodied_rl.policies.pi0.config import Pi0ModelConfig, siglip
from embodied_rl.policies.pi0.config import nano as pi0_nano
from embodied_rl.policies.preprocessing.fit import ImageFit


@dataclass(frozen=True, kw_only=True)
class SmolVLAModelConfig(Pi0ModelConfig):
    """Everything that fixes the parameters of a SmolVLA policy and how its inputs are laid out."""

    shuffle: int
    """Patches along each side of the block that becomes one token of the language model."""
    frame_size: int
    """Height and width in pixels of every camera's image; the network scales them to the vision tower's size."""
    self_attn_every: int = 2
    """Every so many layers of the expert, from the first, attend to action tokens too; the others only to the language
    model's keys and values, through projections of their own."""
    lm_head_rows: int = 0
    """Rows of the language model's unused output head, which the published files have and which is held, frozen."""
    vlm: str = ""
    """The language model's name on the Hugging Face hub, by which LeRobot's files say its sizes; '' has none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state_input != "token" or self.adaptive:
            raise ValueError("SmolVLA reads the state as a token, and its norms have no condition")
        if self.shuffle < 1 or self.vision.image_size // self.vision.patch_size % self.shuffle:
            raise ValueError(f"the patches of a side must be a multiple of shuffle, got {self.shuffle}")
        if self.self_attn_every < 1 or self.frame_size < 1:
            raise ValueError("self_attn_every and frame_size must be positive")

    @property
    def image_size(self) -> int:
        """Height and width in pixels of every camera's image."""
        return self.frame_size

    @property
    def image_fit(self) -> ImageFit:
        """How images of another shape are made square, as LeRobot does."""
        return "pad_top_left"

    @property
    def visual_tokens(self) -> int:
        """Tokens that the language model reads of all cameras together."""
        return super().visual_tokens // self.shuffle**2


def llama(vocab: int, dim: int, layers: int, heads: int, kv_heads: int, head_dim: int, mlp_dim: int) -> DecoderConfig:
    """A Llama decoder. LeRobot turns by angles of base 10000 whatever base the language model was trained with."""
    return DecoderConfig(
        vocab_size=vocab,
        dim=dim,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_dim=mlp_dim,
        norm_eps=1e-5,
    )


def expert_of(decoder: DecoderConfig, share: float) -> DecoderConfig:
    """The action expert: the language model at `share` of its width. MLP: 8/3 of that, rounded up to 256."""
    width = int(decoder.dim * share)
    return replace(decoder, vocab_size=0, dim=width, mlp_dim=-(-4 * int(2 * width / 3) // 256) * 256)


def nano(
    *,
    image_size: int = 64,
    dim: int = 128,
    layers: int = 4,
    text_vocab: int = 384,
    horizon: int = 4,
    num_cameras: int = 2,
) -> SmolVLAModelConfig:
    """About 1 M parameters: trains from nothing on a CPU."""
    like = pi0_nano(horizon=horizon, num_cameras=num_cameras)
    decoder = llama(text_vocab, dim, layers, 2, 1, 64, 2 * dim)
    return SmolVLAModelConfig(
        vision=replace(like.vision, image_size=image_size, patch_size=8),
        shuffle=2,
        frame_size=image_size,
        decoder=decoder,
        expert=expert_of(decoder, 0.75),
        horizon=horizon,
        chunk_len=horizon,
        max_action_dim=like.max_action_dim,
        max_state_dim=like.max_state_dim,
        num_cameras=num_cameras,
        learned_positions=True,
        value_hidden=like.value_hidden,
        noise_hidden=like.noise_hidden,
    )


def smolvla_base() -> SmolVLAModelConfig:
    """The published size: 16 layers of SmolVLM2-500M and an expert of 0.75 of its width; 450,046,176 parameters."""
    decoder = llama(49280, 960, 16, 15, 5, 64, 2560)
    return SmolVLAModelConfig(
        vision=siglip(512, 16, 768, 12, 12, 3072),
        shuffle=4,
        frame_size=256,
        decoder=decoder,
        expert=expert_of(decoder, 0.75),
        horizon=50,
        chunk_len=50,
        lm_head_rows=49280,
        vlm="HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
    )


_PRESETS: dict[str, Callable[[], SmolVLAModelConfig]] = {"nano": nano, "smolvla_base": smolvla_base}


def preset(name: str) -> SmolVLAModelConfig:
    """The preset `name`: nano or smolvla_base; UserError for another name."""
    if name not in _PRESETS:
        raise UserError(f"unknown smolvla preset '{name}'.{suggest(name, _PRESETS)}")
    return _PRESETS[name]()
