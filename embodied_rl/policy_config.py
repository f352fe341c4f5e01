"""Options of the policies: which checkpoint, how its actions are drawn, what of it trains in which number format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embodied_rl.errors import UserError

SHIPPED = "shipped"


@dataclass(frozen=True, kw_only=True)
class OpenVLAConfig:
    """The OpenVLA policy."""

    checkpoint: str = SHIPPED
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] of a published one on the Hugging Face hub; 'shipped' is
    the small one in the package."""
    unnorm_key: str | None = None
    """Data set whose action statistics apply (None: the one that the checkpoint names; published ones name none)."""
    center_crop: float | None = None
    """Share of each image's area that is cut out of its middle, 0.9 for models trained on random crops (None: as the
    checkpoint says; a published OpenVLA sees the whole image)."""
    temperature: float = 1.0
    """Widens (or below 1 narrows) the distribution that actions are sampled from; greedy evaluation does not use it."""
    lora_rank: int = 0
    """Train LoRA adapters of this rank and small heads, and freeze the rest; 0 trains every parameter."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number format: bfloat16 holds frozen parameters and multiplies in it; what trains, and logits, stay float32."""
    recompute: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third slower."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UserError(f"policy.temperature must be positive, got {self.temperature}.")
        if self.lora_rank < 0:
            raise UserError(f"policy.lora_rank must not be negative, got {self.lora_rank}.")
        if self.center_crop is not None and not 0 < self.center_crop <= 1:
            raise UserError(f"policy.center_crop must lie in (0, 1], got {self.center_crop}.")


@dataclass(frozen=True, kw_only=True)
class OpenVLAOFTConfig(OpenVLAConfig):
    """The OpenVLA-OFT policy: OpenVLA that decides a whole chunk in one pass."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy openvla_oft makes one), or OWNER/NAME[@REVISION] of a
    published one on the Hugging Face hub. None ships with the package."""
    variant: Literal["official", "simplevla", "rlinf"] | None = None
    """For published checkpoints, which do not say how they decode: openvla-oft's own, SimpleVLA-RL's or RLinf's."""
    head: Literal["tokens", "l1"] | None = None
    """What reads the action slots (None: as the variant)."""
    keep_stop: bool | None = None
    """Keep the stop token after the action slots (None: as the variant)."""
    num_cameras: int | None = None
    """Images in the input (None: as the variant)."""
    use_proprio: bool | None = None
    """One token from the proprio (None: as the variant)."""
    film: bool | None = None
    """The instruction modulates the vision towers (None: as the variant)."""
    chunk_len: int | None = None
    """Control steps decided at once (None: 8)."""


PolicyConfig = OpenVLAConfig | OpenVLAOFTConfig
