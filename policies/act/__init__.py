"""ACT (Zhao et al. 2023): a transformer that regresses whole chunks of actions; it reads no instruction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from embodied_rl.errors import UserError
from embodied_rl.policies.family import Observes, PolicyFamily
from embodied_rl.utils.options import Expert

LOG_STD = (-5.0, 1.0)
"""What the logarithm of the standard deviation of a normalised action is kept within."""
INITIAL_STD = 0.1
"""Standard deviation of a new policy's normalised actions."""


@dataclass(frozen=True, kw_only=True)
class ACTConfig:
    """The ACT policy. It has no adapters and no lower number format: it is small."""

    observes: ClassVar[Observes] = "images"
    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy act makes one), or a published one of LeRobot: its
    folder, or OWNER/NAME[@REVISION] on the Hugging Face hub. None ships with the package."""
    statistics: Expert[str | None] = None
    """For published checkpoints: file or folder of the data set's statistics (None: those among or beside the
    weights)."""
    unnorm_key: Expert[str | None] = None
    """Data set whose statistics apply, of a checkpoint that was trained on several (None: the first)."""
    preset: Expert[str | None] = None
    """For random weights, where a suite allows them: nano, tiny or act_base (None: nano)."""
    chunk_len: Expert[int | None] = None
    """Control steps executed before the next decision (None: as the checkpoint says). It turns temporal ensembling
    off, which has no log-prob."""
    initial_std: Expert[float | None] = None
    """Standard deviation that sampled actions begin with, in standard deviations of the data's, 0.00674 to 2.718; it is
    learned, for each action dimension and step (None: 0.1, or as the checkpoint has learned)."""

    def __post_init__(self) -> None:
        if self.chunk_len is not None and self.chunk_len < 1:
            raise UserError(f"--policy.chunk-len must be at least 1, got {self.chunk_len}.")
        low, high = (math.exp(end) for end in LOG_STD)
        if self.initial_std is not None and not low <= self.initial_std <= high:
            raise UserError(
                f"--policy.initial-std must lie in {low:.3g} to {high:.4g}, which learning keeps it within, "
                f"got {self.initial_std}."
            )


FAMILY = PolicyFamily(
    name="act",
    config=ACTConfig,
    given=("unnorm_key", "statistics", "chunk_len", "temporal_ensemble_coeff"),
    holds=lambda config: config.get("type") == "act",
    instructed=False,
)
