"""SmolVLA (Shukor et al. 2025): pi0's sampler around SmolVLM2 and an expert that attends across."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.errors import UserError
from embodied_rl.policies.family import ExportRequest, FreshRequest, TrainingMode, pick
from embodied_rl.policies.pi0 import FAMILY as PI0
from embodied_rl.policies.pi0 import FlowPolicyConfig, export_native

if TYPE_CHECKING:
    from embodied_rl.policies.memory import Footprint
    from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions
    from embodied_rl.policies.smolvla.config import SmolVLAModelConfig
    from embodied_rl.policies.smolvla.policy import SmolVLAPolicy


@dataclass(frozen=True, kw_only=True)
class SmolVLAConfig(FlowPolicyConfig):
    """The SmolVLA policy."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy smolvla makes one), or a published one of LeRobot: its
    folder, or OWNER/NAME[@REVISION] on the Hugging Face hub. None ships with the package."""
    tokenizer: str | None = None
    """For published checkpoints: SmolVLM2's tokenizer.json (None: the one beside the weights)."""


def load(folder: Path, options: SmolVLAOptions) -> SmolVLAPolicy:
    """See `checkpoint.load_any`."""
    from embodied_rl.policies.smolvla import checkpoint

    return checkpoint.load_any(folder, options)


def export(policy: SmolVLAPolicy, request: ExportRequest) -> None:
    """See `hf_format.save_published`."""
    from embodied_rl.policies.smolvla.hf_format import save_published

    if request.layout == "native":
        export_native(policy, request)
        return
    if request.layout == "openpi":
        raise UserError("--layout openpi is for pi0, and this policy is smolvla")
    save_published(policy, request.out, request.cameras, request.provenance, request.dtype)


def fresh(request: FreshRequest) -> SmolVLAPolicy:
    """See `pi0.policy.fresh_for`."""
    from embodied_rl.policies.pi0.policy import fresh_for
    from embodied_rl.policies.smolvla.config import preset
    from embodied_rl.policies.smolvla.policy import SmolVLAPolicy

    return fresh_for(SmolVLAPolicy, preset(request.preset), request)


def _load_options(given: Any) -> SmolVLAOptions:
    from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions

    return pick(SmolVLAOptions, given)


def _preset(name: str, variant: str) -> SmolVLAModelConfig:
    from embodied_rl.policies.smolvla.config import preset

    return preset(name)


def measure(config: SmolVLAModelConfig, mode: TrainingMode) -> Footprint:
    """See `pi0.memory.measure`."""
    from embodied_rl.policies.pi0 import memory
    from embodied_rl.policies.smolvla.policy import SmolVLAPolicy

    return memory.measure(config, mode, SmolVLAPolicy)


FAMILY = replace(
    PI0,
    name="smolvla",
    config=SmolVLAConfig,
    given=("tokenizer", "statistics"),
    holds=lambda config: config.get("type") == "smolvla",
    load_options=_load_options,
    load=load,
    export=export,
    fresh=fresh,
    preset=_preset,
    measure=measure,
)
