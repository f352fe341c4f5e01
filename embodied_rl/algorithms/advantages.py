"""Advantages over ragged rows: generalised advantage estimation and group-relative scores. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from embodied_rl.types import EpisodeResult


def gae(
    reward: Tensor, value: Tensor, episodes: Sequence[EpisodeResult], gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) over decisions.

    reward, value: float32 [B], rows of one episode contiguous and in time order, `episodes[e].num_decisions` rows each.
    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lambda A_{t+1}. After the last row V is 0 if the task
    terminated, and the value of the final observation (`final_value`) if time ran out. Returns (advantage, returns),
    float32 [B], with returns = advantage + value.
    """
    rewards, values = reward.double().tolist(), value.double().tolist()  # a tensor's elements one by one are slow
    advantages = [0.0] * len(rewards)
    end = 0
    for episode in episodes:
        start, end = end, end + episode.num_decisions
        following_value = 0.0 if episode.terminated else episode.final_value
        following_advantage = 0.0
        for row in reversed(range(start, end)):
            delta = rewards[row] + gamma * following_value - values[row]
            following_advantage = delta + gamma * gae_lambda * following_advantage
            following_value = values[row]
            advantages[row] = following_advantage
    if end != len(rewards):
        raise ValueError(f"episodes have {end} rows, the batch has {len(rewards)}")
    advantage = torch.tensor(advantages, dtype=torch.float32)
    return advantage, advantage + value


def group_relative(score: Tensor, group: Tensor, eps: float = 1e-6) -> Tensor:
    """GRPO's advantage of each episode (Shao et al. 2024, section 4.1): (score - mean) / (std + eps) within its group.

    score: float32 [E], summed reward; group: int64 [E]. std is the sample standard deviation (n - 1). A group of equal
    scores gets zeros. Returns float32 [E].
    """
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    if (size < 2).any():
        raise ValueError("a group needs at least two episodes")
    score = score.double()
    zeros = torch.zeros(len(size), dtype=torch.float64)
    mean = zeros.index_add(0, member, score) / size
    centred = score - mean[member]
    std = (zeros.index_add(0, member, centred.square()) / (size - 1)).sqrt()
    return (centred / (std[member] + eps)).float()
