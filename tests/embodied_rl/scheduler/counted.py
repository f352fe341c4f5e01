"""A simulator, a policy and an optimiser whose time is counted, not taken: each call adds its known cost to a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from embodied_rl.autotune.costs import Costs
from embodied_rl.policy import ActMode, PolicyTraits
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Array, ChunkResult, EpisodeSpec, EvalOutput, Observation
from tests.env_info import env_info


class Counter:
    """Seconds so far; a clock to whoever calls it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class Counted:
    """Costs that are charged to a clock."""

    costs: Costs
    time: Counter

    @contextmanager
    def steps(self) -> Iterator[None]:
        """Charge optimiser steps, whoever takes them."""

        def charge(*_: object) -> None:
            self.time.seconds += self.costs.learn.fixed

        handle = register_optimizer_step_post_hook(charge)
        try:
            yield
        finally:
            handle.remove()


class CountedEnv:
    """Episodes of `length(spec)` decisions that succeed if `won(spec)`."""

    def __init__(
        self, num_envs: int, counted: Counted, length: Callable[[EpisodeSpec], int], won: Callable[[EpisodeSpec], bool]
    ) -> None:
        self.num_envs = num_envs
        self.info = env_info("counted", 1)
        self._counted, self._length, self._won = counted, length, won
        self._left = np.zeros(num_envs, np.int64)
        self._success = np.zeros(num_envs, np.bool_)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._left[env_id], self._success[env_id] = self._length(spec), self._won(spec)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        index = list(env_ids)
        self._counted.time.seconds += self._counted.costs.simulate.of(len(index))
        self._left[index] -= 1
        over = self._left[index] == 0
        won = over & self._success[index]
        return ChunkResult.from_numpy(
            reward=won[:, None].astype(np.float32),
            terminated=won,
            truncated=over & ~won,
            success=won,
            steps_taken=np.ones(len(index), np.int32),
            failed=np.zeros_like(won),
        )

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        out.instruction[: len(env_ids)] = ["wait"] * len(env_ids)

    def new_observation(self, rows: int) -> Observation:
        return self.info.new_observation(rows)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        raise NotImplementedError("nothing is drawn")

    def close(self) -> None:
        pass


class CountedPolicy(nn.Module):
    """Learns nothing to speak of. A forward pass costs `costs.evaluate`, a backward pass the rest of a micro-batch."""

    chunk_len = action_dim = terms_per_step = 1
    with_value = True
    traits = PolicyTraits(critic="value_head.")

    def __init__(self, counted: Counted) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.value_head = nn.Linear(1, 1)
        self._counted = counted

    def _spend(self, seconds: float) -> None:
        self._counted.time.seconds += seconds

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        count = len(obs.instruction)
        self._spend(self._counted.costs.act.of(count))
        with torch.no_grad():
            value = self.value_head(torch.ones(count, 1))[:, 0]
            return ActOutput(torch.zeros(count, 1, 1), self.weight.expand(count, 1).clone(), value, {})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        count, costs = len(images), self._counted.costs
        assert costs.evaluate is not None
        forward, whole = costs.evaluate.of(count), costs.learn_call + costs.learn.row * count
        self._spend(forward)
        log_prob = self.weight.expand(count, 1) * 1.0
        if log_prob.requires_grad:
            log_prob.register_hook(lambda gradient: self._spend(whole - forward))
        return EvalOutput(log_prob, torch.zeros(count, 1), self.value_head(torch.ones(count, 1))[:, 0])

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
    ) -> Tensor:
        raise AssertionError("it does not imitate")
