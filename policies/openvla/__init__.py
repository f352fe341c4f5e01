"""OpenVLA (Kim et al. 2024): action tokens decoded one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.shipped import SHIPPED
from embodied_rl.policies.family import Observes, PolicyFamily
from embodied_rl.utils.options import Expert


@dataclass(frozen=True, kw_only=True)
class OpenVLAConfig:
    """The OpenVLA policy."""

    observes: ClassVar[Observes] = "images"
    checkpoint: str = SHIPPED
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] of a published one on the Hugging Face hub; 'shipped' is
    the small one in the package."""
    preset: str | None = None
    """Size of a policy that begins with random weights (no checkpoint): nano or tiny (None: nano)."""
    unnorm_key: Expert[str | None] = None
    """Data set whose action statistics apply (None: the one that the checkpoint names; published ones name none)."""
    center_crop: Expert[float | None] = None
    """Share of each image's area that is cut out of its middle, 0.9 for models trained on random crops (None: as the
    checkpoint says; a published OpenVLA sees the whole image)."""
    temperature: float = 1.0
    """Widens (or below 1 narrows) the distribution that actions are sampled from; greedy evaluation does not use it."""
    lora_rank: int = 0
    """Train LoRA adapters of this rank and small heads, and freeze the rest; 0 trains every parameter."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format: bfloat16 holds frozen parameters and multiplies in it; what trains, and logits, stay float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third slower."""
    compile: bool = False
    """Act through torch.compile: the first decisions wait for the compiler, and numbers round differently. On a GPU
    CUDA graphs."""

    def __post_init__(self) -> None:
        if self.preset is not None and self.checkpoint:
            raise UserError(f"--policy.preset sizes a policy with random weights, not {self.checkpoint}: leave it out.")
        if self.temperature <= 0:
            raise UserError(f"--policy.temperature must be positive, got {self.temperature}.")
        if self.lora_rank < 0:
            raise UserError(f"--policy.lora-rank must not be negative, got {self.lora_rank}.")
        if self.center_crop is not None and not 0 < self.center_crop <= 1:
            raise UserError(f"--policy.center-crop must lie in (0, 1], got {self.center_crop}.")


FAMILY = PolicyFamily(
    name="openvla",
    config=OpenVLAConfig,
    given=("unnorm_key", "variant", "center_crop"),
    holds=lambda config: config.get("model_type") == "openvla",
)
