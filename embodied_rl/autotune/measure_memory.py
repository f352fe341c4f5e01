"""What a policy and its rows take in memory, and what the devices of this machine have."""

from __future__ import annotations

import torch
from torch import nn

from embodied_rl.autotune.gpu_memory import GAPS
from embodied_rl.autotune.memory import Sizes
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policies.memory import Rows, peak_bytes
from embodied_rl.rollout.episode import ActiveEpisode, decision_rng
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv


def measure_sizes(policy: TrainablePolicy, env: VecEnv, spec: EpisodeSpec) -> Sizes:
    """Sizes of `policy`, which is loaded: from forward and backward passes over one and two copies of a real row, the
    first of episode `spec`. Weights stay as they are, and gradients are dropped.
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
    return Sizes(
        weights=sum(parameter.nbytes for parameter in policy.parameters()),
        learning=sum(parameter.nbytes for parameter in learning),
        trained=sum(parameter.numel() for parameter in learning),
        update_fixed=max(0, 2 * one - two),
        update_row=two - one,
        act_row=twice - seen,
        observation=obs.images.nbytes + obs.proprio.nbytes,
    )


def room(device: str, held: int) -> int:
    """Bytes of `device` ('cpu', 'cuda:1') for a run that holds `held` of them already; what gaps take is left out."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int((free + torch.cuda.memory_reserved(device)) / (1 + GAPS))
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    return int((available + held) / (1 + GAPS))
