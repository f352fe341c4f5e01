"""OpenVLA-OFT (Kim et al. 2025): OpenVLA that decides a whole chunk in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from embodied_rl.policies.openvla import FAMILY as OPENVLA
from embodied_rl.policies.openvla import OpenVLAConfig


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


FAMILY = replace(OPENVLA, name="openvla_oft", config=OpenVLAOFTConfig)
