"""From the options of a token policy to the policy: what is said about its checkpoint, and how it is to train."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.config import kind_of
from embodied_rl.errors import UserError
from embodied_rl.policy_config import SHIPPED, OpenVLAOFTConfig, PolicyConfig

if TYPE_CHECKING:
    from embodied_rl.policies.openvla.description import LoadOptions
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy

_VARIANT_FLAGS = ("head", "keep_stop", "num_cameras", "use_proprio", "film", "chunk_len")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Which policy a command opens. Checkpoints of `sft` and `train` need their folder only."""

    checkpoint: str = SHIPPED
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] of a published one on the Hugging Face hub; 'shipped' is
    the small policy in the package."""
    policy: str | None = None
    """Kind of a published checkpoint: openvla or openvla_oft (None: as the checkpoint says)."""
    unnorm_key: str | None = None
    """Data set whose action statistics apply (None: the one that the checkpoint names; published ones name none)."""
    variant: str | None = None
    """How a published OpenVLA-OFT was trained: official, simplevla or rlinf."""
    center_crop: float | None = None
    """Share of each image's area that is cut out of its middle (None: as the checkpoint says)."""

    def load_options(self) -> LoadOptions:
        """What it says about the checkpoint; UserError for an unknown variant."""
        from embodied_rl.policies.openvla.description import LoadOptions
        from embodied_rl.policies.openvla_oft.config import variant

        return LoadOptions(
            architecture=self.policy, unnorm_key=self.unnorm_key, center_crop=self.center_crop,
            variant=None if self.variant is None else variant(self.variant),
        )


def load_options(config: PolicyConfig) -> LoadOptions:
    """What a run's options say about its checkpoint; UserError where flags are given without a variant."""
    from embodied_rl.policies.openvla.description import LoadOptions
    from embodied_rl.policies.openvla_oft.config import variant

    chosen = None
    if isinstance(config, OpenVLAOFTConfig):
        flags: dict[str, Any] = {name: getattr(config, name) for name in _VARIANT_FLAGS}
        given = {name: value for name, value in flags.items() if value is not None}
        if given and config.variant is None:
            name = next(iter(given)).replace("_", "-")
            raise UserError(f"--policy.{name} changes a published variant: choose that too, with --policy.variant.")
        chosen = None if config.variant is None else dataclasses.replace(variant(config.variant), **given)
    return LoadOptions(architecture=kind_of("policy", config), unnorm_key=config.unnorm_key, variant=chosen,
                       center_crop=config.center_crop)


def prepare_policy(policy: OpenVLAPolicy, config: PolicyConfig, folder: Path) -> None:
    """Make `policy`, which was loaded from `folder`, ready to train: adapters, formats, temperature."""
    from embodied_rl.policies.lora import set_formats
    from embodied_rl.policies.openvla.checkpoint import adapt_policy
    from embodied_rl.policies.recompute import set_recompute

    if config.lora_rank and policy.base is None:
        adapt_policy(policy, folder, config.lora_rank)
    set_formats(policy.model, config.precision)
    policy.mixed_precision = config.precision == "bfloat16"
    set_recompute(policy, config.recompute)
    policy.temperature = config.temperature
