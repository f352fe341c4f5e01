"""A small network for tasks with a state in place of images: Gaussian or squashed Gaussian actions, with a critic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from embodied_rl.errors import UserError
from embodied_rl.policies.family import Observes, PolicyFamily
from embodied_rl.policies.mlp.config import LOG_STD
from embodied_rl.utils.options import Expert


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """The state policy. It begins with random weights; a checkpoint is not needed."""

    observes: ClassVar[Observes] = "state"
    checkpoint: str = ""
    """Folder of a run or checkpoint to go on from (none given: random weights, which follow from --seed)."""
    hidden: tuple[int, ...] | None = None
    """Units of each hidden layer, in the policy and in its critic (None: 64 64, or as the checkpoint has)."""
    chunk_len: Expert[int | None] = None
    """Control steps that it decides at once (None: 1, or as the checkpoint has)."""
    squash: bool | None = None
    """Bring sampled actions into their bounds by tanh and not by clipping (None: no, or as the checkpoint does)."""
    initial_std: Expert[float | None] = None
    """Standard deviation of the actions that a new policy samples, in [-1, 1] units, 0.00674 to 2.718; it is learned
    (None: 0.6)."""

    def __post_init__(self) -> None:
        if self.hidden is not None and (not self.hidden or min(self.hidden) < 1):
            raise UserError("--policy.hidden must name at least one layer, each with at least 1 unit.")
        if self.chunk_len is not None and self.chunk_len <= 0:
            raise UserError(f"--policy.chunk-len must be positive, got {self.chunk_len}.")
        low, high = (math.exp(end) for end in LOG_STD)
        if self.initial_std is not None and not low <= self.initial_std <= high:
            raise UserError(
                f"--policy.initial-std must lie in {low:.3g} to {high:.4g}, which learning keeps it within, "
                f"got {self.initial_std}."
            )


FAMILY = PolicyFamily(name="mlp", config=MLPConfig, given=(), holds=lambda config: False)
