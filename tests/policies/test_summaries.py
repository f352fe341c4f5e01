"""What policies make of an observation: one vector, the same whatever is drawn, and whatever stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from embodied_rl.types import Observation
from tests.policies import oft_policies, pi0_models, smolvla_models, wrapped_networks
from tests.policies.test_openvla_policy import _observation, _policy

MAKE: dict[str, Callable[[], tuple[Any, Observation]]] = {
    "openvla": lambda: ((policy := _policy()), _observation(4, policy)),
    "openvla_oft": lambda: ((policy := oft_policies.policy()), oft_policies.observation(4, policy)),
    "pi0": lambda: (pi0_models.tiny_policy(), pi0_models.observation(4)),
    "pi05": lambda: (pi0_models.tiny_policy("pi05"), pi0_models.observation(4)),
    "smolvla": lambda: (smolvla_models.tiny_policy(), smolvla_models.observation(4)),
    "wrapped": lambda: (wrapped_networks.wrapped("tokens"), wrapped_networks.observation(4)),
}


def summary(policy: Any, obs: Observation) -> torch.Tensor:
    return policy.traits.summarise(obs.images, obs.proprio, obs.instruction)


@pytest.mark.parametrize("name", MAKE)
def test_one_vector_for_each_observation_and_nothing_is_drawn(name: str) -> None:
    policy, obs = MAKE[name]()
    policy.train()
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    found = summary(policy, obs)
    assert found.dtype == torch.float32
    assert found.shape[0] == 4
    assert found.ndim == 2
    assert not found.requires_grad
    torch.manual_seed(1)
    assert torch.equal(summary(policy, obs), found)
    torch.testing.assert_close(summary(policy, obs.rows([2])), found[2:3], rtol=1e-4, atol=1e-4)
    assert (found[0] - found[1]).abs().max() > 1e-2
    assert all(torch.equal(before[key], value) for key, value in policy.state_dict().items())


@pytest.mark.parametrize("name", ["openvla", "openvla_oft"])
def test_it_is_what_the_critic_reads(name: str) -> None:
    policy, obs = MAKE[name]()
    found = summary(policy, obs)
    policy.with_value = True
    value = policy.act(obs, oft_policies.rng(4), "greedy").value
    torch.testing.assert_close(policy.model.value(found), value, rtol=1e-4, atol=1e-4)


def test_a_network_without_features_has_none() -> None:
    assert wrapped_networks.wrapped("tokens", features=False).traits.summarise is None
