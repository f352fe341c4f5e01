"""The ACT architecture as data (Zhao et al. 2023, appendix C; LeRobot's `policies/act`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.preprocessing.fit import ImageFit

Activation = Literal["relu", "gelu"]
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class ACTModelConfig:
    """Everything that fixes the parameters of an ACT policy and how its inputs are laid out.

    Example:
        >>> ACTModelConfig(frame=(480, 640), horizon=100, chunk_len=100, action_dim=14, proprio_dim=14, num_cameras=1)
    """

    frame: tuple[int, int]
    """Height and width in pixels of what the network reads of each camera."""
    horizon: int
    """Control steps that it predicts (H)."""
    chunk_len: int
    """Control steps executed before the next decision (K), the first ones of the horizon."""
    action_dim: int = 7
    """Dimensions of an action (A)."""
    proprio_dim: int = 8
    """Dimensions of the proprio vector (P); 0: it reads none."""
    num_cameras: int = 2
    """Cameras (V), in the order of the observation; one backbone reads all of them."""
    backbone_blocks: tuple[int, ...] = (2, 2, 2, 2)
    """Residual blocks of each stage of the ResNet, whose width doubles and whose resolution halves from one to the
    next; ResNet-18's."""
    backbone_width: int = 64
    """Channels of the first stage."""
    dim: int = 512
    """Width of the transformer (D)."""
    heads: int = 8
    """Attention heads."""
    mlp_dim: int = 3200
    """Width of the transformer's MLPs."""
    activation: Activation = "relu"
    """Of the transformer's MLPs."""
    pre_norm: bool = False
    """Layer norms stand before attention and MLPs, else after them."""
    encoder_layers: int = 4
    """Layers that read latent, state and images."""
    decoder_layers: int = 1
    """Layers that decide. The paper's code has seven, of which only the first one's output is used."""
    use_vae: bool = True
    """Imitation has a latent, which an encoder of the demonstrated actions fills (VAE); acting takes its mean, 0."""
    latent_dim: int = 32
    """Width of the latent."""
    vae_layers: int = 4
    """Layers of the encoder of demonstrated actions."""
    kl_weight: float = 10.0
    """Weight of the latent's KL divergence from a standard normal in the imitation loss."""
    temporal_ensemble_coeff: float | None = None
    """Greedy acting averages what all chunks so far say of a step, with weights exp(-coefficient * i), the oldest
    chunk's i being 0; then every decision executes one step. None: a chunk is executed as it was decided."""
    image_mean: tuple[float, ...] = ()
    """Mean of each channel of each camera, V times 3 numbers of images in [0, 1]; () ImageNet's."""
    image_std: tuple[float, ...] = ()
    """Standard deviation, likewise."""
    clip_actions: bool = True
    """Cut actions to [-1, 1], which are LIBERO's bounds; off where an env or a data set has bounds of its own."""
    value_hidden: tuple[int, int] = (512, 128)
    """Hidden widths of the value head."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_len <= self.horizon:
            raise ValueError(f"chunk_len must lie in 1..horizon, got {self.chunk_len} and {self.horizon}")
        if self.dim % self.heads or self.dim % 4:
            raise ValueError(f"dim must be a multiple of heads and of 4, got {self.dim} and {self.heads}")
        if self.temporal_ensemble_coeff is not None and self.chunk_len != 1:
            raise ValueError("temporal ensembling decides at every step: chunk_len must be 1")
        if min(self.num_cameras, self.action_dim, *self.frame, *self.backbone_blocks) < 1 or self.proprio_dim < 0:
            raise ValueError("cameras, action dimensions, frame and blocks must be positive")
        if self.activation not in ("relu", "gelu"):
            raise ValueError(f"activation must be relu or gelu, got {self.activation!r}")
        sizes = {len(self.image_mean), len(self.image_std)}
        if sizes not in ({0}, {3 * self.num_cameras}) or min(self.image_std, default=1.0) < 0:
            raise ValueError(f"image_mean and image_std must have {3 * self.num_cameras} numbers each, std >= 0")

    @property
    def image_size(self) -> int:
        """Height and width in pixels of every camera's image; the network reads the frame in its middle."""
        return max(self.frame)

    @property
    def image_fit(self) -> ImageFit:
        """How images of another shape are made square: whole, in the middle, where the network reads them."""
        return "pad"

    @property
    def image_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation, V times 3 numbers each."""
        times = self.num_cameras
        return self.image_mean or _IMAGENET_MEAN * times, self.image_std or _IMAGENET_STD * times

    def clip(self, actions: Tensor) -> Tensor:
        """Actions as an env takes them, cut to [-1, 1] where its bounds are those."""
        return actions.clamp(-1.0, 1.0) if self.clip_actions else actions


def nano() -> ACTModelConfig:
    """About 1 M parameters: trains from nothing on a CPU. Its backbone has three stages, which leave 16 places a camera
    of 64 x 64 pixels."""
    return ACTModelConfig(
        frame=(64, 64),
        horizon=8,
        chunk_len=8,
        backbone_blocks=(1, 1, 1),
        backbone_width=24,
        dim=128,
        heads=4,
        mlp_dim=256,
        encoder_layers=2,
        latent_dim=16,
        vae_layers=2,
        value_hidden=(128, 64),
    )


def tiny() -> ACTModelConfig:
    """About 5 M parameters: a small GPU, or a patient CPU."""
    return ACTModelConfig(
        frame=(112, 112),
        horizon=16,
        chunk_len=16,
        backbone_blocks=(2, 2, 2),
        backbone_width=32,
        dim=256,
        mlp_dim=512,
        encoder_layers=3,
        latent_dim=32,
        vae_layers=2,
        value_hidden=(256, 128),
    )


def act_base() -> ACTModelConfig:
    """The paper's sizes as LeRobot has them, with frames of 224 x 224 pixels; 51,597,190 parameters for six joints."""
    return ACTModelConfig(frame=(224, 224), horizon=100, chunk_len=100)


_PRESETS: dict[str, Callable[[], ACTModelConfig]] = {"nano": nano, "tiny": tiny, "act_base": act_base}


def preset(name: str) -> ACTModelConfig:
    """The preset `name`: nano, tiny or act_base; UserError for another name."""
    if name not in _PRESETS:
        raise UserError(f"unknown act preset '{name}'.{suggest(name, _PRESETS)}")
    return _PRESETS[name]()
