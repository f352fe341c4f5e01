"""A small flow-matching policy on a state, imitation, and a critic of its chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from embodied_rl.benchmarks.few_episodes_world import ACTIONS, CHUNK, Draw, Rows, join
from embodied_rl.policies.flow import training_inputs
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.types import Array

DIM = CHUNK * ACTIONS
WIDTH = 256
_DENOISING_STEPS = 5
_TIMES = 8
_BLOCK = 256
UNSAID, GOOD, BAD = 0, 1, 2
"""What a policy is told of the chunk that it is to make."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """Settings of flow matching. told: share of the rows whose chunk's quality is said, where it is known."""

    batch: int = 192
    draws: int = 2
    lr: float = 5e-4
    weight_decay: float = 1e-3
    warmup: int = 50
    told: float = 0.7


@dataclass(frozen=True, slots=True)
class Steering:
    """Settings of the critic. discount: of a chunk. candidates: chunks of the policy to choose from (N). refresh: steps
    after which the values of all next states are computed anew."""

    candidates: int = 8
    heads: int = 2
    discount: float = 0.97
    batch: int = 128
    lr: float = 5e-4
    weight_decay: float = 1e-3
    refresh: int = 50


class FlowPolicy(nn.Module):
    """Velocity of a noisy chunk, from a state and what is asked for: GOOD, BAD or UNSAID."""

    def __init__(self, states: Tensor, seed: int) -> None:
        super().__init__()
        std = states.std(0)
        self.register_buffer("mean", states.mean(0))
        self.register_buffer("std", torch.where(std < 1e-3, torch.ones(()), std))
        self.wanted = UNSAID
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(philox(seed, Draw.WEIGHTS).integers(2**62)))
            self.from_state = nn.Linear(states.shape[1] + 3, WIDTH)
            self.from_chunk = nn.Linear(DIM + 2 * _TIMES, WIDTH, bias=False)
            self.inner = nn.Sequential(
                nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU()
            )
            self.head = nn.Linear(WIDTH, DIM)

    def seen(self, state: Tensor) -> Tensor:
        """The state, normalised by the demonstrations."""
        return ((state - self.get_buffer("mean")) / self.get_buffer("std")).clamp(-5.0, 5.0)

    def hidden(self, x: Tensor, time: Tensor, state: Tensor, quality: Tensor) -> Tensor:
        """[N,M,W] of x [N,M,D] at time [N,M], state [N,S], quality int64 [N]."""
        angles = time[..., None] * 2.0 ** torch.arange(_TIMES) * (math.pi / 4)
        known = torch.cat([self.seen(state), functional.one_hot(quality, 3)], dim=1)
        chunk = self.from_chunk(torch.cat([x, angles.sin(), angles.cos()], dim=-1))
        return self.inner(self.from_state(known)[:, None] + chunk)

    @torch.no_grad()
    def chunks(self, state: Tensor, noise: Tensor) -> Tensor:
        """Chunks [N,M,D] in [-1, 1] from noise [N,M,D], along the ODE."""
        x, quality = noise, torch.full((len(state),), self.wanted)
        for step in range(_DENOISING_STEPS):
            time = torch.full(x.shape[:2], 1.0 - step / _DENOISING_STEPS)
            x = x - self.head(self.hidden(x, time, state, quality)) / _DENOISING_STEPS
        return x.clamp(-1.0, 1.0)

    @torch.no_grad()
    def summary(self, state: Tensor) -> Tensor:
        """What the network makes of a state before it has begun a chunk: [N,W]."""
        count = len(state)
        return self.hidden(torch.zeros(count, 1, DIM), torch.ones(count, 1), state, torch.full((count,), self.wanted))[
            :, 0
        ]

    def act(self, state: Tensor, rng: DecisionRng) -> Tensor:
        """One chunk a state: [N,K,A]."""
        return self.chunks(state, torch.from_numpy(rng.normal(DIM))[:, None]).view(-1, CHUNK, ACTIONS)


def imitate(
    policy: FlowPolicy,
    demonstrations: Rows,
    others: Rows | None,
    steps: int,
    key: tuple[int, int],
    settings: Imitation = Imitation(),
    quality: Tensor | None = None,
) -> None:
    """Flow matching, half of each batch demonstrations where there are others. key: seed and round.

    quality: int64 of the others' rows, GOOD or BAD; demonstrations are good then. None: nothing is said.
    """
    optimizer = torch.optim.AdamW(policy.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    rows = demonstrations if others is None or not len(others) else join([demonstrations, others])
    first = len(demonstrations)
    known = torch.full((len(rows),), UNSAID)
    if quality is not None:
        known = torch.cat([torch.full((first,), GOOD), quality])
    seed, number = key
    for step in range(steps):
        draws = philox(seed, Draw.BATCH, number, step)
        batch = torch.from_numpy(_half_and_half(draws, settings.batch, first, len(rows)))
        normal = torch.from_numpy(draws.standard_normal((settings.batch, settings.draws, 1, DIM), dtype="float32"))
        uniform = torch.from_numpy(draws.random((settings.batch, settings.draws), dtype="float32"))
        told = torch.from_numpy(draws.random(settings.batch)) < settings.told
        x, time, target = training_inputs(rows.chunk[batch][:, None], normal, uniform)
        hidden = policy.hidden(x[:, :, 0], time, rows.state[batch], torch.where(told, known[batch], UNSAID))
        loss = (policy.head(hidden) - target[:, :, 0]).square().mean()
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * min(1.0, (step + 1) / settings.warmup) * _cosine(step / steps)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()


def _cosine(part: float) -> float:
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * part))


def _half_and_half(draws: np.random.Generator, size: int, first: int, count: int) -> Array:
    """Row numbers, half of them below `first` and half from there on; all of them below where there is no more."""
    if first in (0, count):
        return draws.integers(count, size=size)
    half = size // 2
    return np.concatenate([draws.integers(first, size=half), draws.integers(first, count, size=size - half)])


class _Head(nn.Module):
    """Q of chunks [N,M,D] in states [N,S]: [N,M]."""

    def __init__(self, state_dim: int) -> None:
        super().__init__()
        self.from_state = nn.Linear(state_dim, WIDTH)
        self.from_chunk = nn.Linear(DIM, WIDTH, bias=False)
        self.inner = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, state: Tensor, chunks: Tensor) -> Tensor:
        return self.inner(self.from_state(state)[:, None] + self.from_chunk(chunks))[..., 0]


class ChunkCritic:
    """The discounted chance that an episode succeeds after a chunk, for choosing among a policy's chunks.

    Rows keep the candidates of their next state, drawn once by the policy that acted: training never asks it again.
    """

    def __init__(self, policy: FlowPolicy, demonstrations: Rows, seed: int, settings: Steering = Steering()) -> None:
        self._policy, self._seed, self._settings = policy, seed, settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(philox(seed, Draw.WEIGHTS, 1).integers(2**62)))
            self._heads = nn.ModuleList(_Head(demonstrations.state.shape[1]) for _ in range(settings.heads))
        self._optimizer = torch.optim.AdamW(
            self._heads.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True
        )
        self._rows, self._candidates = [demonstrations], [self._draw(demonstrations, 0)]

    def _draw(self, rows: Rows, number: int) -> Tensor:
        draws = philox(self._seed, Draw.CANDIDATES, number)
        noise = draws.standard_normal((len(rows), self._settings.candidates, DIM), dtype="float32")
        return self._policy.chunks(rows.next_state, torch.from_numpy(noise))

    def add(self, rows: Rows) -> None:
        """New rows of the policy as it is now."""
        self._candidates.append(self._draw(rows, len(self._rows)))
        self._rows.append(rows)

    def value(self, state: Tensor, chunks: Tensor) -> Tensor:
        """The lowest head's, [N,M], of normalised states."""
        return torch.stack([head(state, chunks) for head in self._heads]).amin(0)

    @torch.no_grad()
    def _best(self, state: Tensor, candidates: Tensor) -> Tensor:
        """Value of the best candidate of each row, in blocks that a cache holds."""
        blocks = zip(state.split(_BLOCK), candidates.split(_BLOCK), strict=True)
        return torch.cat([self.value(of_block, chunks).amax(1) for of_block, chunks in blocks])

    def learn(self, steps: int, number: int) -> float:
        """Temporal differences towards the best candidate of the next state; returns the last loss."""
        rows, candidates = join(self._rows), torch.cat(self._candidates)
        state, after = self._policy.seen(rows.state), self._policy.seen(rows.next_state)
        first, won = len(self._rows[0]), rows.won.float()
        goes_on = self._settings.discount * (~rows.over).float()
        target, loss = won, torch.zeros(())
        for step in range(steps):
            if step % self._settings.refresh == 0:
                target = (won + goes_on * self._best(after, candidates)).clamp(0.0, 1.0)
            draws = philox(self._seed, Draw.CRITIC_BATCH, number, step)
            batch = torch.from_numpy(_half_and_half(draws, self._settings.batch, first, len(rows)))
            chunk, wanted = rows.chunk[batch][:, None], target[batch]
            loss = torch.stack([head(state[batch], chunk)[:, 0] - wanted for head in self._heads]).square().mean()
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def act(self, state: Tensor, rng: DecisionRng) -> Tensor:
        """The best of N chunks of the policy."""
        count = self._settings.candidates
        chunks = self._policy.chunks(state, torch.from_numpy(rng.normal(count * DIM)).view(-1, count, DIM))
        best = self.value(self._policy.seen(state), chunks).argmax(1)
        return chunks[torch.arange(len(chunks)), best].view(-1, CHUNK, ACTIONS)
