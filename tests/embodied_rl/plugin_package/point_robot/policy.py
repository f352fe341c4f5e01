"""A linear Gaussian policy of the proprio."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from embodied_rl.policy import ActMode, PolicyTraits, masked_steps
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation
from embodied_rl.vec_env import EnvInfo


class LinearPolicy(nn.Module):
    with_value = True
    traits = PolicyTraits(critic="value_head.")

    def __init__(self, info: EnvInfo, std: float = 0.5, chunk_len: int = 2) -> None:
        super().__init__()
        self.chunk_len, self.action_dim, self.terms_per_step = chunk_len, info.action_dim, info.action_dim
        self.mean = nn.Linear(info.proprio_dim, chunk_len * info.action_dim)
        self.value_head = nn.Linear(info.proprio_dim, 1)
        self.log_std = nn.Parameter(torch.full((chunk_len * info.action_dim,), math.log(std)))

    @torch.no_grad()
    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        mean, value = self._forward(obs.proprio)
        drawn = mean
        if mode == "sample":
            drawn = mean + self.log_std.exp() * torch.from_numpy(rng.normal(mean.shape[1]))
        actions = drawn.clamp(-1, 1).reshape(-1, self.chunk_len, self.action_dim)
        return ActOutput(actions, self._log_prob(mean, drawn), value, {"drawn": drawn})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        mean, value = self._forward(proprio)
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).expand_as(mean)
        return EvalOutput(self._log_prob(mean, replay["drawn"]), entropy, value)

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        mean, _ = self._forward(proprio)
        return masked_steps(mean - actions.flatten(1), action_mask).square().mean()

    def _forward(self, proprio: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(proprio), self.value_head(proprio)[:, 0]

    def _log_prob(self, mean: Tensor, drawn: Tensor) -> Tensor:
        return torch.distributions.Normal(mean, self.log_std.exp()).log_prob(drawn)
