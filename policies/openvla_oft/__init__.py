"""OpenVLA-OFT (Kim et al. 2025): OpenVLA that decides a whole chunk in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from embodied_rl.policies.openvla import FAMILY as OPENVLA
from embodied_rl.policies.openvla import OpenVLAConfig
from embodied_rl.utils.options import Expert


@dataclass(frozen=True, kw_only=True)
class OpenVLAOFTConfig(OpenVLAConfig):
    """The OpenVLA-OFT policy: OpenVLA that decides a whole chunk in one pass."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy openvla_oft makes one), or OWNER/NAME[@REVISION] of a
    published one on the Hugging Face hub. None ships with the package."""
    variant: Expert[Literal["official", "simplevla", "rlinf"] | None] = None
    """For published checkpoints, which do not say how they decode: openvla-oft's own, SimpleVLA-RL's or RLinf's."""
    num_cameras: Expert[int | None] = None
    """Images in the input (None: as the variant)."""
    use_proprio: Expert[bool | None] = None
    """One token from the proprio (None: as the variant)."""
    film: Expert[bool | None] = None
    """The instruction modulates the vision towers (None: as the variant)."""
    chunk_len: Expert[int | None] = None
    """Control steps decided at once (None: 8)."""


FAMILY = replace(OPENVLA, name="openvla_oft", config=OpenVLAOFTConfig)
