"""Settings of a progress model's training; imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embodied_rl.errors import UserError


@dataclass(frozen=True, slots=True)
class RewardTrainConfig:
    """How a progress model learns; every one of them changes the result, except `threads`."""

    steps: int = 1500
    """Optimiser steps."""
    batch_size: int = 64
    """Frames a step; a quarter of them show success."""
    lr: float = 1e-3
    """Peak learning rate of AdamW; it rises over 50 steps and falls to 0 along a cosine."""
    shift: int = 3
    """Random shift of each image by up to this many pixels (0: none)."""
    success_frames: int = 2
    """Frames at the end of a demonstration that show success; as many before them again are left out."""
    validation: float = 0.2
    """Share of each instruction's episodes that are held out."""
    seed: int = 0
    """Seed of the initial weights, the split, the order of frames and the augmentation."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""

    def __post_init__(self) -> None:
        least = {"steps": 1, "batch_size": 4, "success_frames": 1, "shift": 0, "seed": 0, "threads": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < 2**31:
                raise UserError(f"--{name.replace('_', '-')} must be at least {low} and below 2^31, got {value}")
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be a finite number above 0, got {self.lr}")
        if not 0 <= self.validation < 1:
            raise UserError(f"--validation must be in [0, 1), got {self.validation}")
