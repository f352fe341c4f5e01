"""Options of `embodied-rl plan`; imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.errors import UserError, suggest

PUBLISHED = {"openvla": "7b", "openvla_oft": "7b", "pi0": "pi0_base", "pi05": "pi05_base", "smolvla": "smolvla_base"}
"""The preset that a policy has unless another is chosen."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """What training a policy needs in memory, and what of it fits on a GPU. Nothing is loaded or downloaded.

    With a benchmark, as in `embodied-rl plan tabletop`: the scheduler that suits this machine, measured.
    """

    policy: str = "openvla"
    """openvla, openvla_oft, pi0, pi05 or smolvla."""
    preset: str | None = None
    """Size of the policy: nano, tiny or 7b; of pi0 nano, tiny, pi0_base, nano_pi05, tiny_pi05, pi05_base or
    pi05_libero; of smolvla nano or smolvla_base (None: the published one)."""
    variant: str = "official"
    """Which published OpenVLA-OFT: official, simplevla or rlinf (7b only)."""
    gpu: float = 24.0
    """Memory of the GPU in GiB."""
    lora_rank: int | None = None
    """Rank of the LoRA adapters (None: 32)."""
    num_envs: int = 32
    """Envs that are decided for at once."""
    json: Path | None = None
    """Write the figures here, in bytes."""

    def __post_init__(self) -> None:
        if self.policy not in PUBLISHED:
            raise UserError(f"unknown policy '{self.policy}'.{suggest(self.policy, PUBLISHED)}")
        for name in ("gpu", "lora_rank", "num_envs"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"--{name.replace('_', '-')} must be positive and finite, got {value}.")
        if self.variant != "official" and self.policy != "openvla_oft":
            raise UserError(f"--variant {self.variant} is a way of OpenVLA-OFT: it needs --policy openvla_oft.")
        if self.variant != "official" and self.size != "7b":
            raise UserError(f"--variant {self.variant} is one of the 7b preset, not of {self.size}: leave it out.")

    @property
    def denoises(self) -> bool:
        """Whether it is a flow policy, whose action expert can train alone."""
        return self.policy in ("pi0", "pi05", "smolvla")

    @property
    def size(self) -> str:
        """The preset, which is the published one unless another is chosen."""
        return self.preset or PUBLISHED[self.policy]
