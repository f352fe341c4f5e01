"""OpenVLA-OFT (Kim et al. 2025): OpenVLA that decides a whole chunk in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.errors import UserError
from embodied_rl.policies.family import FreshRequest, pick
from embodied_rl.policies.openvla import FAMILY as OPENVLA
from embodied_rl.policies.openvla import OpenVLAConfig

if TYPE_CHECKING:
    from embodied_rl.policies.openvla.config import LoadOptions
    from embodied_rl.policies.openvla_oft.config import OFTModelConfig
    from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy

_VARIANT_FLAGS = ("head", "keep_stop", "num_cameras", "use_proprio", "film", "chunk_len")


@dataclass(frozen=True, kw_only=True)
class OpenVLAOFTConfig(OpenVLAConfig):
    """The OpenVLA-OFT policy: OpenVLA that decides a whole chunk in one pass."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy openvla_oft makes one), or OWNER/NAME[@REVISION] of a
    published one on the Hugging Face hub. None ships with the package."""
    variant: Literal["official", "simplevla", "rlinf"] | None = None
    """For published checkpoints, which do not say how they decode: openvla-oft's own, SimpleVLA-RL's or RLinf's."""
    head: Literal["tokens", "l1"] | None = None
    """What reads the action envs (None: as the variant)."""
    keep_stop: bool | None = None
    """Keep the stop token after the action envs (None: as the variant)."""
    num_cameras: int | None = None
    """Images in the input (None: as the variant)."""
    use_proprio: bool | None = None
    """One token from the proprio (None: as the variant)."""
    film: bool | None = None
    """The instruction modulates the vision towers (None: as the variant)."""
    chunk_len: int | None = None
    """Control steps decided at once (None: 8)."""


def fresh(request: FreshRequest) -> OpenVLAOFTPolicy:
    """See `openvla.policy.fresh_for`."""
    from embodied_rl.policies.openvla.policy import fresh_for
    from embodied_rl.policies.openvla_oft.config import preset
    from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy

    return fresh_for(OpenVLAOFTPolicy, preset(request.preset), request)


def _load_options(given: Any) -> LoadOptions:
    from embodied_rl.policies.openvla.config import LoadOptions
    from embodied_rl.policies.openvla_oft.config import variant

    flags = {name: getattr(given, name, None) for name in _VARIANT_FLAGS}
    flags = {name: value for name, value in flags.items() if value is not None}
    if flags and given.variant is None:
        name = next(iter(flags)).replace("_", "-")
        raise UserError(f"--policy.{name} changes a published variant: choose that too, with --policy.variant.")
    chosen = None if given.variant is None else replace(variant(given.variant), **flags)
    return pick(LoadOptions, given, architecture="openvla_oft", variant=chosen)


def _preset(name: str, variant_name: str) -> OFTModelConfig:
    from embodied_rl.policies.openvla_oft.config import preset, variant

    return preset(name, variant(variant_name))


FAMILY = replace(
    OPENVLA, name="openvla_oft", config=OpenVLAOFTConfig, load_options=_load_options, fresh=fresh, preset=_preset
)
