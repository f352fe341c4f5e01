"""Small networks for the toy world, one for each action head, whose rows do not depend on the rest of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.policies.wrapped.heads import (
    ActionHead,
    ActionTokens,
    AutoregressiveTokens,
    GaussianActions,
    VelocityField,
)
from embodied_rl.policies.wrapped.policy import WrappedPolicy, wrap_policy
from embodied_rl.types import Observation
from embodied_rl.vec_env import EnvInfo
from tests.toy import ACTION_DIM, BINS, CHUNK, INSTRUCTIONS, SIZE, ToyEnv, row_linear

WIDTH, HORIZON, FIELD_DIM = 32, CHUNK + 1, ACTION_DIM + 1
INFO = ToyEnv(1).info
VALUES = torch.linspace(-1, 1, BINS)


def observation(rows: int = 5) -> Observation:
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (rows, 1, SIZE, SIZE, 3), dtype=np.uint8)
    words = [list(INSTRUCTIONS.values())[row % 2] for row in range(rows)]
    return Observation.from_numpy(images, draws.normal(0, 0.5, (rows, 2)).astype(np.float32), words)


class Trunk(nn.Module):
    """The observation as a vector. outputs: numbers of its last layer."""

    def __init__(self, outputs: int, features: bool = True, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Linear(SIZE * SIZE * 3 + 3, WIDTH)
            self.dropout = nn.Dropout(0.5)
            self.last = nn.Linear(WIDTH, outputs)
        self.gives_features = features

    def hidden(self, obs: Observation) -> Tensor:
        words = torch.tensor([[float("touch" in text)] for text in obs.instruction])
        x = torch.cat([obs.images.flatten(1).float() / 255, obs.proprio, words], dim=1)
        return self.dropout(torch.tanh(row_linear(x, self.body)))

    def give(self, output: Any, hidden: Tensor) -> Any:
        return (output, hidden) if self.gives_features else output


class TokenNet(Trunk):
    def __init__(self, features: bool = True) -> None:
        super().__init__(HORIZON * ACTION_DIM * BINS, features)

    def forward(self, obs: Observation) -> Any:
        hidden = self.hidden(obs)
        return self.give(row_linear(hidden, self.last).view(-1, HORIZON, ACTION_DIM, BINS), hidden)


class NextTokenNet(Trunk):
    def __init__(self, features: bool = True) -> None:
        super().__init__(BINS, features)
        self.embed = nn.Embedding.from_pretrained(torch.randn(BINS, WIDTH, generator=torch.Generator().manual_seed(1)))

    def encode(self, obs: Observation) -> Any:
        hidden = self.hidden(obs)
        return self.give(hidden, hidden)

    def next_token(self, context: Tensor, tokens: Tensor) -> Tensor:
        before = torch.cat([torch.zeros(len(tokens), 1, WIDTH), self.embed(tokens).cumsum(dim=1)], dim=1)
        place = torch.arange(before.shape[1], dtype=torch.float32)[:, None]
        x = torch.tanh(context[:, None] * (1 + place) + before)
        return (x[:, :, None, :] * self.last.weight).sum(dim=-1) + self.last.bias


class MeanNet(Trunk):
    def __init__(self, features: bool = True) -> None:
        super().__init__(HORIZON * ACTION_DIM, features)

    def forward(self, obs: Observation) -> Any:
        hidden = self.hidden(obs)
        return self.give(row_linear(hidden, self.last).view(-1, HORIZON, ACTION_DIM), hidden)


class VelocityNet(Trunk):
    def __init__(self, features: bool = True) -> None:
        super().__init__(HORIZON * FIELD_DIM, features)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.noisy = nn.Linear(HORIZON * FIELD_DIM + 1, WIDTH)
        self.encodings = 0

    def encode(self, obs: Observation) -> Any:
        self.encodings += 1
        hidden = self.hidden(obs)
        return self.give(hidden, hidden)

    def velocity(self, context: Tensor, x: Tensor, time: Tensor) -> Tensor:
        late = torch.cat([x.flatten(1), time[:, None]], dim=1)
        hidden = torch.tanh(context + row_linear(late, self.noisy))
        return x + row_linear(hidden, self.last).view_as(x)


def wrapped(kind: str, *, features: bool = True, lora_rank: int = 0, info: EnvInfo = INFO, **options: Any) -> Any:
    """A policy for the toy world."""
    sizes: Any = {"chunk_len": CHUNK, "horizon": HORIZON, **({"features": WIDTH} if features else {})}
    heads: dict[str, Callable[..., ActionHead]] = {
        "tokens": lambda: ActionTokens(info, values=VALUES, **sizes, **options),
        "autoregressive": lambda: AutoregressiveTokens(info, values=VALUES, **sizes, **options),
        "gaussian": lambda: GaussianActions(info, **sizes, **options),
        "velocity": lambda: VelocityField(info, field_dim=FIELD_DIM, **sizes, **options),
    }
    networks = {"tokens": TokenNet, "autoregressive": NextTokenNet, "gaussian": MeanNet, "velocity": VelocityNet}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        policy: WrappedPolicy = wrap_policy(networks[kind](features), heads[kind](), lora_rank=lora_rank)
    policy.with_value = True
    return policy


KINDS = ("tokens", "autoregressive", "gaussian", "velocity")
