"""What fits into memory: ways to train on a GPU that need not be there, and a run's recorded rows on this machine.

Counted: weights, float32 gradients and AdamW's two float32 moments of what trains, and a policy's measured activations.
Added on a GPU, where they cannot be counted: CUDA's context and libraries. A share of everything goes to the
allocator's gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.config.train import TrainConfig
from embodied_rl.policies.memory import Footprint
from embodied_rl.scheduler.config import PipelinedConfig

GIB = 2**30
CONTEXT_BYTES = 1 * GIB
GAPS = 0.05
_GRADIENT, _MOMENTS = 4, 8
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One way to train.

    lora_rank: 0 trains every parameter, or with train_expert_only those of an action expert and the heads.
    """

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


def modes(lora_rank: int, *, expert: bool) -> list[Mode]:
    """The ways to train that `plan` compares, those that train more later; expert: it has one to train alone."""
    few = partial(Mode, lora_rank=lora_rank, dtype="bfloat16")
    alone = partial(Mode, train_expert_only=True, dtype="bfloat16")
    return [
        few(gradient_checkpointing=True),
        few(gradient_checkpointing=False),
        *([alone(gradient_checkpointing=True), alone(gradient_checkpointing=False)] if expert else []),
        Mode(dtype="bfloat16", gradient_checkpointing=True),
        Mode(dtype="float32", gradient_checkpointing=False),
    ]


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that one way to train needs on a GPU.

    Rollout and update share one copy of the weights and follow each other, so the larger of the two counts.

    Args:
        row: activations of one row of a micro-batch.
        rollout_row: activations of acting for one world.
        cache_row: key-value cache of acting for one world.
    """

    mode: Mode
    weights: int
    gradients: int
    optimizer: int
    fixed: int
    row: int
    rollout_row: int
    cache_row: int

    def update(self, rows: int) -> int:
        """While a micro-batch of `rows` rows goes forward and backward."""
        return self.weights + self.gradients + self.optimizer + self.fixed + rows * self.row

    def rollout(self, envs: int) -> int:
        """While the policy acts for `envs` worlds; there are no gradients then."""
        return self.weights + self.optimizer + envs * (self.rollout_row + self.cache_row)

    def total(self, rows: int, envs: int) -> int:
        """On the card, with what cannot be counted."""
        return CONTEXT_BYTES + int((1 + GAPS) * max(self.update(rows), self.rollout(envs)))

    def most_rows(self, budget: int) -> int:
        """The largest micro-batch whose update fits into `budget` bytes; 0 when not even one row does."""
        room = (budget - CONTEXT_BYTES) / (1 + GAPS) - self.update(0)
        return max(0, int(room // self.row))

    def most_envs(self, budget: int) -> int:
        """The most worlds that the policy can act for at once in `budget` bytes."""
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
    """To act for one robot with bfloat16 weights and nothing to train."""
    return CONTEXT_BYTES + int((1 + GAPS) * (2 * parameters + rollout_row + cache_row))


def host_shortage(config: TrainConfig, observation: int, batch_rows: int) -> str | None:
    """Why the recorded rows of a run do not fit into the host's memory, in words; None if they do.

    What a device lacks a short trial finds out. A trial holds few rows, though, and what runs out of the host's memory
    is killed.

    Args:
        observation: bytes of one recorded row.
        batch_rows: rows of an iteration.
    """
    needed, free = round(observation * batch_rows * _batches_held(config)), room("cpu")
    return f"needs {needed / GIB:.3g} GiB of cpu, {free / GIB:.3g} are free" if needed > free else None


def _batches_held(config: TrainConfig) -> float:
    """Batches of recorded rows in the host's memory when a batch is whole, copies counted.

    Serial holds them where they were rendered and as one batch. Learning groups as they end (`GroupUpdate`) keeps a
    copy of the minibatch under way, and with further epochs of all.
    """
    scheduler, algorithm = config.scheduler, make_algorithm(config.algorithm)
    if not isinstance(scheduler, PipelinedConfig):
        return 2.0
    groups = config.rollout.groups(algorithm.group_size)
    under_way = 1.0 if algorithm.epochs > 1 else min(1.0, (config.learner.minibatch_groups or groups) / groups)
    return (1 if scheduler.mode == "on_policy" else 2) + scheduler.staleness + under_way


def room(device: str) -> int:
    """Bytes of `device` ('cpu', 'cuda:1') that are free for a run; what gaps take is left out."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int((free + torch.cuda.memory_reserved(device)) / (1 + GAPS))
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    return int(available / (1 + GAPS))
