"""SmolVLA (Shukor et al. 2025): pi0's sampler around SmolVLM2 and an expert that attends across."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.policies.family import PolicyFamily
from embodied_rl.policies.pi0 import FlowPolicyConfig
from embodied_rl.utils.options import Expert


@dataclass(frozen=True, kw_only=True)
class SmolVLAConfig(FlowPolicyConfig):
    """The SmolVLA policy."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy smolvla makes one), or a published one of LeRobot: its
    folder, or OWNER/NAME[@REVISION] on the Hugging Face hub. None ships with the package."""
    tokenizer: Expert[str | None] = None
    """For published checkpoints: SmolVLM2's tokenizer.json (None: the one beside the weights)."""


FAMILY = PolicyFamily(
    name="smolvla",
    config=SmolVLAConfig,
    given=("unnorm_key", "tokenizer", "statistics"),
    holds=lambda config: config.get("type") == "smolvla",
)
