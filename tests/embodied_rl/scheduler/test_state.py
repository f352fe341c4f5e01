"""A policy that reads the simulator's state, with several env groups acting together: the rollout of the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.config import AlgorithmConfig
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.types import ActOutput, EvalOutput, Observation
from tests.embodied_rl.scheduler.toys import GRPO, PPO, Setup, SlowEnv, assert_same_rows, jitter, pipelined, serial
from tests.toy import ToyPolicy


class StateEnv(SlowEnv):
    """The toy, whose state says where the goal is."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(8, jitter(seed))
        self.info = replace(self.info, state_dim=2)

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        assert out.state is not None
        out.state[:] = torch.from_numpy(self._goal[list(env_ids)])
        return super().observe(env_ids, out)


class StatePolicy(ToyPolicy):
    """Takes the state as optional: without it, it decides otherwise and says nothing."""

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        seen = obs.proprio if obs.state is None else obs.proprio + 3 * obs.state
        out = super().act(replace(obs, proprio=seen), rng, mode)
        return replace(out, replay=out.replay | {"seen": seen.clone()})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        return super().evaluate(images, replay["seen"], instruction, replay)


@pytest.mark.parametrize("algorithm", [GRPO, replace(PPO, bootstrap_truncated=True)], ids=str)
def test_on_policy_everything_is_as_in_the_serial_run(algorithm: AlgorithmConfig, tmp_path: Path) -> None:
    """Also the values of what truncated episodes show at last."""
    setup = Setup(algorithm)
    expected = serial(setup, tmp_path, policy=StatePolicy(), env=StateEnv())
    found = pipelined(setup, tmp_path, env_ids=8, stages=4, policy=StatePolicy(), env=StateEnv(1))
    for one, two in zip(expected.batches, found.batches, strict=True):
        assert_same_rows(one, two)
    assert all(torch.equal(found.weights[name], value) for name, value in expected.weights.items())


@pytest.mark.parametrize("algorithm", [GRPO, replace(PPO, bootstrap_truncated=True)], ids=str)
def test_async_the_first_batch_is_that_of_the_serial_run(algorithm: AlgorithmConfig, tmp_path: Path) -> None:
    """All of it acted by the first policy, whichever env groups act together."""
    setup = Setup(algorithm, iterations=1)
    expected = serial(setup, tmp_path, policy=StatePolicy(), env=StateEnv())
    found = pipelined(
        setup, tmp_path, env_ids=8, stages=4, workers=4, policy=StatePolicy(), env=StateEnv(1), ahead=Lookahead(1, 2)
    )
    assert_same_rows(expected.batches[0], found.batches[0])
