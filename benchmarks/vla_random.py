"""A random OpenVLA of any size on a device, as it trains, and random rows for it: what `vla` measures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied_rl.autotune.memory import Mode
from embodied_rl.policies.family import TrainingMode, pick
from embodied_rl.policies.openvla import memory
from embodied_rl.policies.openvla.config import OpenVLAModelConfig
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.rollout.observation_pool import StepRecord, Trajectory, gather
from embodied_rl.types import ActOutput, EpisodeResult, EpisodeSpec, Observation, RolloutBatch

MODE = Mode(lora_rank=32, dtype="bfloat16", gradient_checkpointing=True)
WAY = pick(TrainingMode, MODE)
"""The same, for `sizes`."""
_EPISODE_ROWS = 4
_STD = 0.02


def make_policy(
    config: OpenVLAModelConfig, mode: Mode = MODE, instructions: Sequence[str] = (memory.INSTRUCTION,)
) -> OpenVLAPolicy:
    """The policy as it trains, without storage: float32 weights of the large one would not fit beside anything."""
    with torch.device("meta"):
        return memory.trainable(config, pick(TrainingMode, mode), instructions)


@torch.no_grad()
def fill(policy: OpenVLAPolicy, device: str) -> None:
    """Random weights on `device`, each made there in the number format that it has already.

    Norms and scales are 1, biases and the adapters' second halves 0, as in a fresh policy.
    """
    policy.to_empty(device=device)
    if buffers := [name for name, _ in policy.named_buffers()]:
        raise RuntimeError(f"buffers have no numbers now, and nothing here knows them: {', '.join(buffers)}")
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in policy.named_parameters():
        if name.endswith(".bias") or ".lora_B." in name:
            parameter.zero_()
        elif parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(0.0, _STD, generator=generator)


def observe(config: OpenVLAModelConfig, rows: int) -> Observation:
    """Random pictures; every prompt is as long as the plan's."""
    draw = np.random.default_rng(rows)
    shape = (rows, config.num_cameras, config.image_size, config.image_size, 3)
    proprio = draw.normal(size=(rows, config.proprio_dim)).astype(np.float32)
    return Observation.from_numpy(draw.integers(0, 256, shape, dtype=np.uint8), proprio, [memory.INSTRUCTION] * rows)


def decide(actor: ParallelActor, obs: Observation) -> ActOutput:
    """One decision a row, drawn as in a rollout."""
    rows = len(obs.instruction)
    return actor.act(obs, DecisionRng(np.arange(rows), np.zeros(rows, np.int64)), "sample")


def make_batch(obs: Observation, out: ActOutput) -> RolloutBatch:
    """Gather the rows as a rollout does: short episodes, of which every other one succeeds."""
    rows = len(obs.instruction)
    reward = torch.zeros(rows)
    round_ = StepRecord(obs, obs, out, reward, torch.ones_like(out.log_prob, dtype=torch.bool), rows)
    recordings = []
    for number, first in enumerate(range(0, rows, _EPISODE_ROWS)):
        own, success = range(first, min(first + _EPISODE_ROWS, rows)), number % 2 == 0
        reward[own[-1]] = float(success)
        result = EpisodeResult(
            EpisodeSpec(number, "random", 0, number, number),
            success,
            terminated=success,
            truncated=not success,
            reward=float(success),
            num_decisions=len(own),
            num_steps=len(own) * out.actions.shape[1],
        )
        recordings.append(Trajectory(result, [(round_, row) for row in own]))
    return gather(recordings, version=0)
