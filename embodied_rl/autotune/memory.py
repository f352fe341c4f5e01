"""What fits into memory: ways to train on a GPU that need not be there, and a run's config on this machine.

Counted: weights, float32 gradients and AdamW's two float32 moments of what trains, and a policy's measured activations.
Added on a GPU, where they cannot be counted: CUDA's context and libraries. A share of everything goes to the
allocator's gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import nn

from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.config.train import TrainConfig
from embodied_rl.learner.learner import TrainablePolicy
from embodied_rl.policies.memory import Footprint, Rows, peak_bytes
from embodied_rl.rollout.episode import ActiveEpisode, decision_rng
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv

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


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a loaded policy and its rows.

    Args:
        footprint: the policy's.
        learning: weights of the parameters that train; a replica has its own of these and shares the others.
        observation: one recorded row.
    """

    footprint: Footprint
    learning: int
    observation: int


def measure_sizes(policy: TrainablePolicy, env: VecEnv, spec: EpisodeSpec) -> Sizes:
    """Sizes of `policy`, from passes over one and two copies of a real row, the first of episode `spec`.

    Its weights stay as they are. Its gradients are dropped.
    """
    assert isinstance(policy, nn.Module)
    env.reset([0], [spec])
    obs = env.new_observation(1)
    env.observe([0], obs)
    replay = policy.act(obs, decision_rng([ActiveEpisode(spec)]), "sample").replay

    def rows(count: int) -> Rows:
        return Rows(
            torch.cat([obs.images] * count),
            torch.cat([obs.proprio] * count),
            obs.instruction * count,
            {key: torch.cat([value.cpu()] * count) for key, value in replay.items()},
        )

    learning = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    try:
        for parameter in learning:
            parameter.grad = torch.zeros_like(parameter)  # there from the second micro-batch on
        one, two = (peak_bytes(policy, rows(count), train=True) for count in (1, 2))
    finally:
        for parameter in learning:
            parameter.grad = None
    seen, twice = (peak_bytes(policy, rows(count), train=False) for count in (1, 2))
    footprint = Footprint(
        weights=sum(parameter.nbytes for parameter in policy.parameters()),
        trained=sum(parameter.numel() for parameter in learning),
        update_fixed=max(0, 2 * one - two),
        update_per_row=two - one,
        rollout_per_row=twice - seen,
    )
    learning_bytes = sum(parameter.nbytes for parameter in learning)
    return Sizes(footprint, learning_bytes, obs.images.nbytes + obs.proprio.nbytes)


def needs(config: TrainConfig, sizes: Sizes, batch_rows: int) -> dict[str, int]:
    """Bytes by device that a trial of `config` needs: a run of it, and the untouched weights of what trains.

    batch_rows: rows of an iteration. Recorded rows are in the host's memory ('cpu'), where the simulator is.
    """
    scheduler, foot = config.scheduler, sizes.footprint
    learn = foot.weights + sizes.learning + (_GRADIENT + _MOMENTS) * foot.trained
    update = foot.update_fixed + config.learner.microbatch_size * foot.update_per_row
    act = config.env.num_envs * foot.rollout_per_row
    found = {"cpu": round(sizes.observation * batch_rows * _batches_held(config)), config.device: 0}
    if not isinstance(scheduler, PipelinedConfig):
        found[config.device] += learn + max(update, act)
        return found
    if scheduler.mode == "async":  # stale rows are evaluated beside acting
        act += config.learner.microbatch_size * foot.rollout_per_row
    if scheduler.act_device is None:
        found[config.device] += learn + sizes.learning + update + act
    else:
        found[config.device] += learn + update
        found[scheduler.act_device] = found.get(scheduler.act_device, 0) + foot.weights + act
    return found


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


def room(device: str, held: int) -> int:
    """Bytes of `device` ('cpu', 'cuda:1') for a run that holds `held` of them already; what gaps take is left out."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int((free + torch.cuda.memory_reserved(device)) / (1 + GAPS))
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    return int((available + held) / (1 + GAPS))


def shortage(needed: Mapping[str, int], free: Mapping[str, int]) -> str | None:
    """Why `needed` does not fit into `free` (bytes by device), in words; None if it does."""
    for device, count in needed.items():
        if count > free[device]:
            return f"needs {count / GIB:.3g} GiB of {device}, {free[device] / GIB:.3g} are free"
    return None
