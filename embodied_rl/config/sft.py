"""Options of `embodied-rl sft`, settings of its loop and the learning-rate schedule; imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from embodied_rl.errors import UserError, refuse_twice


@dataclass(frozen=True, slots=True)
class SftConfig:
    """Settings of the loop; every one of them changes the result, except `threads` and the three intervals."""

    steps: int = 2000
    """Optimiser steps."""
    batch_size: int = 64
    """Samples a step; a sample is one frame and the chunk of actions that starts there."""
    lr: float = 1e-3
    """Peak learning rate of AdamW; the default is for small new policies. Published ones were tuned with less: pi0 with
    2.5e-5, SmolVLA with 1e-4, OpenVLA's adapters with 5e-4."""
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
    """Train a policy on demonstrations in LeRobot's layout, v3.0, v2.1 or v2.0.

    A stopped run (Ctrl-C, kill) goes on when the same command is given again.
    """

    data: Annotated[tuple[str, ...], tyro.conf.Positional]
    """DATA, or several as DATA:WEIGHT: the folder of a data set, as `embodied-rl collect` makes it, or
    OWNER/NAME[@REVISION] on the Hugging Face hub. Each sample of a batch is of one drawn by weight (1 where none is
    given)."""
    out: Path
    """Folder of the checkpoint; it must not exist yet."""
    checkpoint: str = ""
    """Begin from this policy: folder of a run or checkpoint, or OWNER/NAME[@REVISION] on the Hugging Face hub, ours or
    published, of whatever robot. Sizes, statistics and words become the data's ('': random weights)."""
    policy: str | None = None
    """Kind of policy: openvla, openvla_oft, pi0, smolvla or act (None: the checkpoint's, or openvla); or one that a
    module of yours registers (--import)."""
    preset: str | None = None
    """Size of a new policy: nano, tiny or 7b; of pi0 nano, tiny, nano_pi05 or tiny_pi05; of smolvla nano; of act nano,
    tiny or act_base (None: nano). Of a published pi0: pi0_base, pi05_base or pi05_libero."""
    tokenizer: str | None = None
    """The language model's tokenizer.json, for a published pi0 (PaliGemma's) or SmolVLA (None: the one beside its
    weights)."""
    variant: str | None = None
    """How a published OpenVLA-OFT was trained: official, simplevla or rlinf."""
    lora_rank: int = 0
    """Train LoRA adapters of this rank on the checkpoint, the projections of states and actions and the heads; with
    --bf16 what is frozen is held in bfloat16. 0 has no adapters."""
    train_expert_only: bool = False
    """pi0, SmolVLA: freeze vision tower and language model of the checkpoint."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    statistics: Literal["own", "joint"] = "own"
    """Of several data sets: each is normalised by its own statistics, under a key of its own, which `--unnorm-key`
    chooses later (pi0, SmolVLA: also robots of other sizes); or all by those of all frames together."""
    chunk_len: int | None = None
    """Control steps that the policy decides at once (K), 1 to 1024 (None: as many as the checkpoint, or 8)."""
    cameras: tuple[str, ...] = ()
    """Cameras of the data in the order in which the policy sees them, the third-person view first; where data sets call
    one otherwise, both names as top/front; one that a data set lacks is left out there (none given: two whose names say
    it, the one with wrist or hand in its name last)."""
    gripper: Literal["auto", "signed", "one_opens", "one_closes", "none"] = "auto"
    """What the last action means: signed: -1 opens, 1 closes; one_opens, one_closes: 0 to 1; none: all actions are in
    the robot's own units, such as joint angles, normalised by the data's statistics and limited by the env only; auto:
    signed, and a data set without numbers below 0 is refused."""
    fps: float | None = None
    """The data's true control rate, in Hz, where info.json is wrong about it (it is for many published ones), or where
    it is not the simulator's (20). The policy learns to decide so many actions a second."""
    image_cache_gib: float = 4.0
    """Memory for decoded images; those beyond are decoded again when needed. The result does not depend on it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise UserError("sft needs a data set: embodied-rl sft DATA --out DIR")
        if self.chunk_len is not None and not 1 <= self.chunk_len <= 1024:
            raise UserError(f"--chunk-len must be from 1 to 1024, got {self.chunk_len}")
        if self.fps is not None and not 0 < self.fps <= 10_000:
            raise UserError(f"--fps must be a number above 0, up to 10000, got {self.fps}")
        if not 0 <= self.image_cache_gib < 2**20:
            raise UserError(f"--image-cache-gib must be a number of GiB, 0 or above, got {self.image_cache_gib}")
        if self.lora_rank < 0:
            raise UserError(f"--lora-rank must not be negative, got {self.lora_rank}")
        for name in ("tokenizer", "variant", "lora_rank", "train_expert_only"):
            if getattr(self, name) and not self.checkpoint:
                raise UserError(f"{_flag(name)} is for the weights of a checkpoint: name one with --checkpoint")
        weighted_data(self.data)

    def check_custom(self) -> None:
        """UserError for an option that a registered policy leaves no choice about."""
        for name in ("checkpoint", "preset", "chunk_len"):
            if getattr(self, name):
                raise UserError(f"{_flag(name)} does not apply to '{self.policy}': what registers it says that.")


def weighted_data(words: Sequence[str]) -> list[tuple[str, float]]:
    """Names and weights of DATA or DATA:WEIGHT; UserError for a weight that is none, or a name given twice."""
    found = []
    for word in words:
        name, colon, weight = word.rpartition(":")
        if not colon or Path(word).exists() or "/" in weight:
            found.append((word, 1.0))
            continue
        try:
            value = float(weight)
        except ValueError:
            value = math.nan
        if not name or not 0 < value < math.inf:
            raise UserError(f"'{word}': write DATA or DATA:WEIGHT with a weight above 0")
        found.append((name, value))
    refuse_twice([name for name, _ in found], "data set")
    return found


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def learning_rate(step: int, config: SftConfig) -> float:
    """Rate for `step` (0-based): linear warm-up, then cosine or linear decay that reaches 0 at `config.steps`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.lr * (0.5 * (1.0 + math.cos(math.pi * progress)) if config.decay == "cosine" else 1.0 - progress)
