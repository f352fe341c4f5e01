"""The pi0 architecture as data (Black et al. 2024); pi0.5 (Physical Intelligence 2025) differs in two fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.nn.decoder import DecoderConfig
from embodied_rl.policies.nn.vision import ViTConfig
from embodied_rl.policies.pi0 import CriticInput
from embodied_rl.policies.preprocessing.fit import ImageFit

_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Pi0ModelConfig:
    """Everything that fixes the parameters of a pi0 or pi0.5 policy and how its inputs are laid out.

    pi0.5 is `expert.condition_dim > 0` (the denoising time conditions the expert's norms; pi0 feeds it with the action)
    and `state_input` 'prompt' or 'none'.
    """

    vision: ViTConfig
    """Vision tower (SigLIP)."""
    decoder: DecoderConfig
    """Language model (Gemma) that reads images and prompt; attention within them goes both ways."""
    expert: DecoderConfig
    """Action expert: its tokens also attend to the language model's keys and values, layer by layer."""
    horizon: int
    """Control steps denoised together (H)."""
    chunk_len: int
    """Control steps executed before the next decision (K), the first ones of the horizon."""
    state_input: Literal["token", "prompt", "none"] = "token"
    """The state is a token of the expert (pi0), 256-bin numbers in the prompt (pi0.5), or left out (pi05_libero)."""
    max_action_dim: int = 32
    """Width of the denoised vectors (D); actions are padded with zeros."""
    max_state_dim: int = 32
    """Width of the state token's input; states are padded with zeros."""
    action_dim: int = 7
    """Dimensions of an action (A)."""
    proprio_dim: int = 8
    """Dimensions of the proprio vector (P)."""
    clip_actions: bool = True
    """Cut actions to [-1, 1], which are LIBERO's bounds; off where an env or a data set has bounds of its own."""
    num_cameras: int = 2
    """Cameras, in the order of the observation. One that a published model knows and this robot lacks is left out, as
    masking it would be."""
    max_cameras: int = 0
    """Cameras of all robots that the network is for; 0: there is one robot."""
    cameras: tuple[int, ...] = ()
    """Which of these the observation has, in order; () all."""
    delta_dims: int = 0
    """So many first dimensions of an action are predicted minus the state at the decision (openpi's
    `extra_delta_transform`, by which its pi0_libero was trained: all but the gripper); 0 predicts actions."""
    learned_positions: bool = False
    """Add learned vectors to each camera's patches and to each action token. Not in pi0; a small model that starts from
    nothing learns faster with them."""
    expert_head_rows: int = 0
    """Rows of the expert's unused output head, which the published files have and which is held for them, frozen."""
    critic_input: CriticInput = "action_tokens"
    """The critic reads the mean hidden state of the action tokens in the recorded denoising steps, or of images and
    prompt (pi_RL: pi0, pi0.5)."""
    value_hidden: tuple[int, int] = (512, 128)
    """Hidden widths of the value head."""
    noise_hidden: tuple[int, int] = (128, 64)
    """Hidden widths of the head that gives Flow-Noise its standard deviations."""

    def __post_init__(self) -> None:
        one, two = self.decoder, self.expert
        if (one.layers, one.heads, one.kv_heads, one.head_dim) != (two.layers, two.heads, two.kv_heads, two.head_dim):
            raise ValueError("language model and expert must agree in layers, heads, kv_heads and head_dim")
        if not 1 <= self.chunk_len <= self.horizon:
            raise ValueError(f"chunk_len must lie in 1..horizon, got {self.chunk_len} and {self.horizon}")
        if self.action_dim > self.max_action_dim or self.proprio_dim > self.max_state_dim:
            raise ValueError("action_dim and proprio_dim must fit into max_action_dim and max_state_dim")
        if not 0 <= self.delta_dims <= min(self.action_dim, self.proprio_dim):
            raise ValueError("delta_dims must lie in 0..action_dim and 0..proprio_dim")
        if self.cameras and (len(self.cameras) != self.num_cameras or max(self.cameras) >= self.max_cameras):
            raise ValueError("cameras must number num_cameras of max_cameras")
        if two.dim % 2:
            raise ValueError("the expert's width must be even")

    def clip(self, actions: Tensor) -> Tensor:
        """Actions as an env takes them, cut to [-1, 1] where its bounds are those."""
        return actions.clamp(-1.0, 1.0) if self.clip_actions else actions

    @property
    def image_size(self) -> int:
        """Height and width in pixels of every camera's image."""
        return self.vision.image_size

    @property
    def image_fit(self) -> ImageFit:
        """How images of another shape are made square, as openpi does."""
        return "pad"

    @property
    def visual_tokens(self) -> int:
        """Tokens that the language model reads of all cameras together."""
        return self.num_cameras * self.vision.num_patches

    @property
    def adaptive(self) -> bool:
        """The denoising time conditions the expert's norms (pi0.5)."""
        return self.expert.condition_dim > 0


def as_pi05(config: Pi0ModelConfig, state_input: Literal["prompt", "none"] = "prompt") -> Pi0ModelConfig:
    """The same sizes in the pi0.5 architecture."""
    expert = replace(config.expert, condition_dim=config.expert.dim)
    return replace(config, expert=expert, state_input=state_input, critic_input="prefix")


def gemma(vocab: int, dim: int, layers: int, heads: int, head_dim: int, mlp_dim: int) -> DecoderConfig:
    """A Gemma decoder with one key and value head."""
    return DecoderConfig(
        vocab_size=vocab,
        dim=dim,
        layers=layers,
        heads=heads,
        kv_heads=1,
        head_dim=head_dim,
        mlp_dim=mlp_dim,
        activation="gelu_tanh",
        norm_offset=True,
    )


def siglip(image_size: int, patch_size: int, dim: int, depth: int, heads: int, mlp_dim: int) -> ViTConfig:
    """SigLIP as in PaliGemma."""
    return ViTConfig(
        image_size=image_size,
        patch_size=patch_size,
        dim=dim,
        depth=depth,
        heads=heads,
        mlp_dim=mlp_dim,
        mean=_HALF,
        std=_HALF,
        output_norm=True,
        gelu_tanh=True,
    )


def nano(
    *,
    image_size: int = 64,
    patch_size: int = 16,
    vision_dim: int = 64,
    vision_depth: int = 2,
    dim: int = 128,
    expert_dim: int = 96,
    layers: int = 3,
    heads: int = 2,
    head_dim: int = 64,
    mlp_dim: int = 256,
    text_vocab: int = 384,
    horizon: int = 4,
    num_cameras: int = 2,
) -> Pi0ModelConfig:
    """About 1 M parameters: trains from nothing on a CPU."""
    return Pi0ModelConfig(
        vision=replace(
            siglip(image_size, patch_size, vision_dim, vision_depth, max(1, vision_dim // 32), 4 * vision_dim),
            pos_embed_std=0.3,
        ),
        decoder=gemma(text_vocab, dim, layers, heads, head_dim, mlp_dim),
        expert=gemma(0, expert_dim, layers, heads, head_dim, 3 * expert_dim),
        horizon=horizon,
        chunk_len=horizon,
        max_action_dim=7,
        max_state_dim=8,
        num_cameras=num_cameras,
        learned_positions=True,
        value_hidden=(dim, dim // 2),
        noise_hidden=(64, 32),
    )


def tiny(*, image_size: int = 112, horizon: int = 8, num_cameras: int = 2) -> Pi0ModelConfig:
    """About 5 M parameters: a small GPU, or a patient CPU."""
    return nano(
        image_size=image_size,
        patch_size=14,
        vision_dim=128,
        vision_depth=4,
        dim=256,
        expert_dim=128,
        layers=4,
        heads=4,
        head_dim=64,
        mlp_dim=704,
        text_vocab=512,
        horizon=horizon,
        num_cameras=num_cameras,
    )


def pi0_base() -> Pi0ModelConfig:
    """The published pi0: SigLIP-So400m/14, Gemma 2B and a 300 M expert; 3,501,372,176 parameters."""
    return Pi0ModelConfig(
        vision=siglip(224, 14, 1152, 27, 16, 4304),
        decoder=gemma(257152, 2048, 18, 8, 256, 16384),
        expert=gemma(0, 1024, 18, 8, 256, 4096),
        horizon=50,
        chunk_len=5,
        expert_head_rows=257152,
    )


def pi05_base() -> Pi0ModelConfig:
    """The published pi0.5, 3,616,757,520 parameters."""
    return as_pi05(pi0_base())


def pi05_libero() -> Pi0ModelConfig:
    """The published pi0.5 for LIBERO: chunks of 10, no state."""
    return replace(as_pi05(pi0_base(), "none"), horizon=10)


_PRESETS: dict[str, Callable[[], Pi0ModelConfig]] = {
    "nano": nano,
    "tiny": tiny,
    "pi0_base": pi0_base,
    "nano_pi05": lambda: as_pi05(nano()),
    "tiny_pi05": lambda: as_pi05(tiny()),
    "pi05_base": pi05_base,
    "pi05_libero": pi05_libero,
}


def preset(name: str) -> Pi0ModelConfig:
    """The preset `name`: nano, tiny, pi0_base and their pi0.5 kin; UserError for another name."""
    if name not in _PRESETS:
        raise UserError(f"unknown pi0 preset '{name}'.{suggest(name, _PRESETS)}")
    return _PRESETS[name]()
