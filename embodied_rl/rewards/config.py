"""Settings of the rewards that a run learns from."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.errors import UserError

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """A reward model beside the simulator's rewards; with PPO."""

    model: str = ""
    """Folder of a progress model, as `embodied-rl reward train` makes it ('': the simulator's rewards alone)."""
    weight: float = 0.5
    """What the differences of its progress are multiplied with."""
    digest: str = AUTO
    """SHA-256 of the model; auto: of the one in the folder. A folder with another model is refused."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < 2**20:
            raise UserError(f"--reward.weight must be above 0 and below 2^20, got {self.weight}.")
