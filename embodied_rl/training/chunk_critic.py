"""Fits a chunk critic to stored decisions by temporal differences. The policy is never asked: candidates are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from embodied_rl.policies.steering import ChunkCritic, CriticConfig
from embodied_rl.rng import RunStream, philox
from embodied_rl.types import Array

_BATCH = 128
_LR = 5e-4
_WEIGHT_DECAY = 1e-3
_REFRESH = 50
"""Steps after which the values of all next decisions are computed anew."""
_BLOCK = 256
_SEEDS = 2**62


@dataclass(frozen=True, slots=True)
class Decisions:
    """D points at which a policy might decide, and R chunks that began at some of them.

    features: float32 [D,F]. candidates: float32 [D,M,K,A], drawn there by the policy that acted. at: int64 [R], where
    each chunk began. chunk: float32 [R,K,A]. reward: float32 [R], the discounted success. discount: float32 [R], of
    what comes at `after`: int64 [R], where it was decided next, -1 where the episode ended and the discount is 0.
    """

    features: Tensor
    candidates: Tensor
    at: Tensor
    chunk: Tensor
    reward: Tensor
    discount: Tensor
    after: Tensor

    def to(self, device: torch.device) -> Decisions:
        """The same on a device."""
        return Decisions(*(getattr(self, part.name).to(device) for part in fields(self)))


def joined(parts: Sequence[Decisions]) -> Decisions:
    """All points and chunks, part after part."""
    first = np.concatenate([[0], np.cumsum([len(part.features) for part in parts])]).tolist()
    moved = [
        Decisions(
            part.features,
            part.candidates,
            part.at + shift,
            part.chunk,
            part.reward,
            part.discount,
            torch.where(part.after < 0, part.after, part.after + shift),
        )
        for part, shift in zip(parts, first, strict=False)
    ]
    return Decisions(*(torch.cat([getattr(part, name.name) for part in moved]) for name in fields(Decisions)))


def fit_critic(
    decisions: Decisions, demonstrated: int, steps: int, key: tuple[int, int], config: CriticConfig | None = None
) -> tuple[ChunkCritic, float]:
    """A critic with new weights, after `steps` optimiser steps towards the value of the best next candidate.

    Half of a batch are demonstrated chunks. What a step sees follows from the key and the step alone.

    Args:
        decisions: on the device to train on, in an order that does not depend on when they came.
        demonstrated: how many of the chunks, the first ones, are demonstrated.
        steps: optimiser steps.
        key: seed of the run, number of the round.
        config: sizes; None: as the decisions ask for.

    Returns:
        The critic, and the mean loss of the last quarter of the steps.
    """
    seed, number = key
    chunk = decisions.chunk
    config = config or CriticConfig(
        features=decisions.features.shape[1], chunk_len=chunk.shape[1], action_dim=chunk.shape[2]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(philox(seed, RunStream.CRITIC, number).integers(_SEEDS)))
        critic = ChunkCritic(config)
    critic.to(chunk.device).standardise(decisions.features, chunk)
    adam = torch.optim.AdamW(critic.parameters(), lr=_LR, weight_decay=_WEIGHT_DECAY)
    target, losses = decisions.reward, list[Tensor]()
    for step in range(steps):
        if step % _REFRESH == 0:
            target = (decisions.reward + decisions.discount * _next_values(critic, decisions)).clamp(0.0, 1.0)
        draws = philox(seed, RunStream.CRITIC, number, step + 1)
        rows = torch.from_numpy(_half_and_half(draws, demonstrated, len(chunk))).to(chunk.device)
        value = critic(decisions.features[decisions.at[rows]], chunk[rows][:, None])[..., 0]
        loss = (value - target[rows]).square().mean()
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()
        losses.append(loss.detach())
    return critic, float(torch.stack(losses[-max(1, steps // 4) :]).mean())


@torch.no_grad()
def _next_values(critic: ChunkCritic, decisions: Decisions) -> Tensor:
    """float32 [R]: value of the best candidate where it was decided next, in blocks that a cache holds."""
    best = [
        critic.value(decisions.features[after], decisions.candidates[after]).amax(dim=1)
        for after in decisions.after.clamp_min(0).split(_BLOCK)
    ]
    return torch.cat(best)


def _half_and_half(draws: np.random.Generator, first: int, count: int) -> Array:
    """int64 [_BATCH]: half of the rows below `first`, half from there on; all of one kind where there is no other."""
    if first in (0, count):
        return draws.integers(count, size=_BATCH)
    half = _BATCH // 2
    return np.concatenate([draws.integers(first, size=half), draws.integers(first, count, size=_BATCH - half)])
