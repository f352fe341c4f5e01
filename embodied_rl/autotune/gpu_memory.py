"""What fits on a GPU: arithmetic on a policy's measured footprint. Nothing is loaded.

Counted: weights, float32 gradients and AdamW's two float32 moments of what trains, activations of a micro-batch at
their peak, the rollout's forward pass with its key-value cache. Rollout and update share one copy of the weights and
follow each other, so the larger of the two counts. Added for what cannot be counted here: CUDA's context and libraries,
and a share of everything for the allocator's gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from embodied_rl.policies.memory import Footprint

GIB = 2**30
CONTEXT_BYTES = 1 * GIB
GAPS = 0.05
_GRADIENT, _MOMENTS = 4, 8
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One way to train. lora_rank 0: every parameter, or with train_expert_only those of an action expert and heads.
    recompute: gradient checkpointing."""

    lora_rank: int = 0
    dtype: Precision
    gradient_checkpointing: bool
    train_expert_only: bool = False

    @property
    def name(self) -> str:
        """In words."""
        what = f"LoRA, rank {self.lora_rank}" if self.lora_rank else "all parameters"
        what = "action expert" if self.train_expert_only else what
        return f"{what}, {self.dtype}{', gradient checkpointing' if self.gradient_checkpointing else ''}"

    @property
    def options(self) -> str:
        """The options of `embodied-rl train` that choose it."""
        words = [f"--policy.lora-rank {self.lora_rank}"] if self.lora_rank else []
        words += ["--policy.train-expert-only"] if self.train_expert_only else []
        words += [f"--policy.dtype {self.dtype}"]
        return " ".join([*words, *(["--policy.gradient-checkpointing"] if self.gradient_checkpointing else [])])


def modes(lora_rank: int) -> list[Mode]:
    """The ways to train that a plan compares, the one that needs least first; lora_rank 0: pi0's and its kin's."""
    few = partial(Mode, lora_rank=lora_rank, train_expert_only=not lora_rank, dtype="bfloat16")
    return [
        few(gradient_checkpointing=True),
        few(gradient_checkpointing=False),
        Mode(dtype="bfloat16", gradient_checkpointing=True),
        Mode(dtype="float32", gradient_checkpointing=False),
    ]


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that one mode needs. row: activations of a row of the update; cache: of a row of the rollout."""

    mode: Mode
    weights: int
    gradients: int
    optimizer: int
    fixed: int
    row: int
    rollout_row: int
    cache_row: int

    def update(self, rows: int) -> int:
        """While `rows` rows go forward and backward."""
        return self.weights + self.gradients + self.optimizer + self.fixed + rows * self.row

    def rollout(self, envs: int) -> int:
        """While the policy decides for `envs` worlds; gradients are freed then."""
        return self.weights + self.optimizer + envs * (self.rollout_row + self.cache_row)

    def total(self, rows: int, envs: int) -> int:
        """On the card, with what cannot be counted."""
        return CONTEXT_BYTES + int((1 + GAPS) * max(self.update(rows), self.rollout(envs)))

    def most_rows(self, budget: int) -> int:
        """The largest micro-batch whose update fits in `budget` bytes; 0 when not even one row does."""
        room = (budget - CONTEXT_BYTES) / (1 + GAPS) - self.update(0)
        return max(0, int(room // self.row))

    def most_envs(self, budget: int) -> int:
        """The most worlds that can be decided for at once in `budget` bytes."""
        room = (budget - CONTEXT_BYTES) / (1 + GAPS) - self.rollout(0)
        return max(0, int(room // (self.rollout_row + self.cache_row)))


def need(mode: Mode, footprint: Footprint, cache_row: int) -> Need:
    """What training in `mode` needs."""
    return Need(
        mode=mode,
        weights=footprint.weights,
        gradients=_GRADIENT * footprint.trained,
        optimizer=_MOMENTS * footprint.trained,
        fixed=footprint.update_fixed,
        row=footprint.update_per_row,
        rollout_row=footprint.rollout_per_row,
        cache_row=cache_row,
    )


def serving_bytes(parameters: int, rollout_row: int, cache_row: int) -> int:
    """To decide for one robot with bfloat16 weights and nothing to train."""
    return CONTEXT_BYTES + int((1 + GAPS) * (2 * parameters + rollout_row + cache_row))
