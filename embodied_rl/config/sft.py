"""Options of `embodied-rl sft`, settings of its loop and the learning-rate schedule; imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from embodied_rl.errors import UserError


@dataclass(frozen=True, slots=True)
class SftConfig:
    """Settings of the loop; every one of them changes the result, except `threads` and the three intervals."""

    steps: int = 2000
    """Optimiser steps."""
    batch_size: int = 64
    """Samples a step; a sample is one frame and the chunk of actions that starts there."""
    lr: float = 1e-3
    """Peak learning rate of AdamW."""
    warmup: int = 100
    """Steps over which the learning rate rises linearly from 0 to its peak."""
    decay: Literal["cosine", "linear"] = "cosine"
    """How the learning rate falls to 0 after the warm-up."""
    weight_decay: float = 0.01
    """AdamW's weight decay, on matrices only (not on biases, norms and embeddings of one dimension)."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    shift: int = 3
    """Random shift of each image by up to this many pixels (0: none)."""
    drop_action_history: float = 0.5
    """Share of the samples whose actions are predicted without the earlier actions of their chunk, which are too easy
    to copy: what the camera shows is then learned much sooner."""
    validation: float = 0.1
    """Share of the episodes held out for the validation loss."""
    bf16: bool = False
    """Forward pass in bfloat16 (autocast): quicker on a GPU, and for larger models on a CPU with avx512_bf16."""
    seed: int = 0
    """Seed of the initial weights, the split, the order of batches and the augmentation."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""
    val_every: int = 250
    """Steps between two validations."""
    val_samples: int = 512
    """Validation samples, evenly spaced over the held-out episodes."""
    save_every: int = 500
    """Steps between two saves of the state."""

    def __post_init__(self) -> None:
        least = dict.fromkeys(("steps", "batch_size", "val_every", "val_samples", "save_every", "threads"), 1)
        for name, low in {**least, "shift": 0, "warmup": 0, "seed": 0}.items():
            value = getattr(self, name)
            if value is not None and not low <= value < 2**63:
                raise UserError(f"{_flag(name)} must be at least {low} and below 2^63, got {value}")
        for name in ("lr", "grad_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{_flag(name)} must be a finite number above 0, got {getattr(self, name)}")
        if not 0 <= self.weight_decay < math.inf:
            raise UserError(f"--weight-decay must be a finite number, 0 or above, got {self.weight_decay}")
        if not 0 <= self.drop_action_history <= 1:
            raise UserError(f"--drop-action-history must lie in [0, 1], got {self.drop_action_history}")
        if not 0 <= self.validation < 1:
            raise UserError(f"--validation must be in [0, 1), got {self.validation}")

    def identity(self) -> dict[str, Any]:
        """The settings that decide the result: a stopped run may only continue with the same ones."""
        free = ("threads", "val_every", "val_samples", "save_every")
        return {f.name: getattr(self, f.name) for f in fields(SftConfig) if f.name not in free}


@dataclass(frozen=True, kw_only=True)
class SftCommand(SftConfig):
    """Train a policy on demonstrations in the LeRobot v3 layout.

    A stopped run (Ctrl-C, kill) goes on when the same command is given again.
    """

    dataset: Annotated[Path, tyro.conf.Positional]
    """Folder of the dataset, as `embodied-rl collect` makes it."""
    out: Path
    """Folder of the checkpoint; it must not exist yet."""
    policy: str = "openvla"
    """Kind of policy: openvla, openvla_oft, pi0 or smolvla."""
    preset: str = "nano"
    """Size of the policy: nano, tiny or 7b; of pi0 nano, tiny, nano_pi05 or tiny_pi05; of smolvla nano."""
    chunk_len: int = 8
    """Control steps that the policy decides at once (K), 1 to 1024."""
    cameras: tuple[str, ...] = ()
    """Cameras of the dataset in the order in which the policy sees them, the third-person view first (none given: two
    whose names say it, the one with wrist or hand in its name last)."""
    gripper: Literal["auto", "signed", "one_opens", "one_closes"] = "auto"
    """What the last action means: signed: -1 opens, 1 closes; one_opens, one_closes: 0 to 1; auto: signed, and a
    dataset without numbers below 0 is refused."""
    fps: float | None = None
    """The data set's true control rate, in Hz, where info.json is wrong about it (it is for many published ones), or
    where it is not the simulator's (20). The policy learns to decide so many actions a second."""
    image_cache_gib: float = 4.0
    """Memory for decoded images; those beyond are decoded again when needed. The result does not depend on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.chunk_len <= 1024:
            raise UserError(f"--chunk-len must be from 1 to 1024, got {self.chunk_len}")
        if self.fps is not None and not 0 < self.fps <= 10_000:
            raise UserError(f"--fps must be a number above 0, up to 10000, got {self.fps}")
        if not 0 <= self.image_cache_gib < 2**20:
            raise UserError(f"--image-cache-gib must be a number of GiB, 0 or above, got {self.image_cache_gib}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def learning_rate(step: int, config: SftConfig) -> float:
    """Rate for `step` (0-based): linear warm-up, then cosine or linear decay that reaches 0 at `config.steps`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.lr * (0.5 * (1.0 + math.cos(math.pi * progress)) if config.decay == "cosine" else 1.0 - progress)
