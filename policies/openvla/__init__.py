"""OpenVLA (Kim et al. 2024): action tokens decoded one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.errors import UserError
from embodied_rl.policies.family import SHIPPED, ExportRequest, FreshRequest, PolicyFamily, TrainingMode, pick

if TYPE_CHECKING:
    from embodied_rl.policies.memory import Footprint
    from embodied_rl.policies.openvla.config import LoadOptions, OpenVLAModelConfig
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy


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
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format: bfloat16 holds frozen parameters and multiplies in it; what trains, and logits, stay float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third slower."""
    compile: bool = False
    """Act through torch.compile: the first decisions wait for the compiler, and numbers round differently. On a GPU
    CUDA graphs."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UserError(f"--policy.temperature must be positive, got {self.temperature}.")
        if self.lora_rank < 0:
            raise UserError(f"--policy.lora-rank must not be negative, got {self.lora_rank}.")
        if self.center_crop is not None and not 0 < self.center_crop <= 1:
            raise UserError(f"--policy.center-crop must lie in (0, 1], got {self.center_crop}.")


def load(folder: Path, options: LoadOptions) -> OpenVLAPolicy:
    """See `checkpoint.load_policy`."""
    from embodied_rl.policies.openvla import checkpoint

    return checkpoint.load_policy(folder, options)


def save(policy: OpenVLAPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """See `checkpoint.save_policy`."""
    from embodied_rl.policies.openvla import checkpoint

    checkpoint.save_policy(policy, folder, provenance)


def export(policy: OpenVLAPolicy, request: ExportRequest) -> None:
    """See `checkpoint.export_policy`."""
    from embodied_rl.policies.openvla import checkpoint

    if request.layout not in (None, "native") or request.cameras:
        raise UserError(f"--layout and --cameras are for pi0 and smolvla, and this policy is {policy.architecture}")
    if request.layout == "native":
        checkpoint.merge_adapters(policy)
        if request.dtype is not None:
            policy.model.to(request.dtype)
        checkpoint.save_policy(policy, request.out, request.provenance)
    else:
        checkpoint.export_policy(policy, request.out, request.provenance, request.dtype)


def prepare(policy: OpenVLAPolicy, config: OpenVLAConfig, folder: Path) -> None:
    """Give `policy`, loaded from `folder`, the adapters and the temperature of `config`."""
    from embodied_rl.policies.openvla.checkpoint import adapt_policy

    if policy.base is None and config.lora_rank:
        adapt_policy(policy, folder, config.lora_rank)
    elif policy.base is not None and policy.base.rank != config.lora_rank:
        raise UserError(
            f"{folder} has LoRA adapters of rank {policy.base.rank}, and --policy.lora-rank is {config.lora_rank}: "
            f"give {policy.base.rank}, or merge the adapters first with `embodied-rl export`"
        )
    policy.temperature = config.temperature


def fresh(request: FreshRequest) -> OpenVLAPolicy:
    """See `policy.fresh_for`."""
    from embodied_rl.policies.openvla.config import preset
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy, fresh_for

    return fresh_for(OpenVLAPolicy, preset(request.preset), request)


def _load_options(given: Any) -> LoadOptions:
    from embodied_rl.policies.openvla.config import LoadOptions

    return pick(LoadOptions, given, architecture="openvla", variant=getattr(given, "variant", None))


def _preset(name: str, variant: str) -> OpenVLAModelConfig:
    from embodied_rl.policies.openvla.config import preset

    return preset(name)


def measure(config: OpenVLAModelConfig, mode: TrainingMode) -> Footprint:
    """See `memory.measure`."""
    from embodied_rl.policies.openvla import memory

    return memory.measure(config, lora_rank=mode.lora_rank, precision=mode.dtype, recompute=mode.gradient_checkpointing)


def cache_bytes(config: OpenVLAModelConfig, element_bytes: int) -> int:
    """See `memory.cache_bytes`."""
    from embodied_rl.policies.openvla import memory

    return memory.cache_bytes(config, element_bytes)


FAMILY = PolicyFamily(
    name="openvla",
    config=OpenVLAConfig,
    given=("unnorm_key", "variant", "center_crop"),
    holds=lambda config: config.get("model_type") == "openvla",
    load_options=_load_options,
    load=load,
    save=save,
    export=export,
    prepare=prepare,
    fresh=fresh,
    preset=_preset,
    measure=measure,
    cache_bytes=cache_bytes,
    prefix_bytes=lambda config, element_bytes: 0,
)
