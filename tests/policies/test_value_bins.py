"""A value head of bins on OpenVLA and OpenVLA-OFT: what it says, and that every kind of checkpoint keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.policies import OpenVLAConfig, OpenVLAOFTConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.factory.critic import fit_critic
from embodied_rl.policies.openvla.checkpoint import adapt_policy, export_policy, load_policy, save_policy
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from tests.policies.oft_policies import PUBLISHED, observation, rng
from tests.policies.oft_policies import policy as oft_policy
from tests.policies.pi0_models import randomise
from tests.policies.test_lora import _policy

HL_GAUSS = PPOConfig(value_loss="hl_gauss", value_bins=21)
OPTIONS = {"openvla": OpenVLAConfig(), "openvla_oft": OpenVLAOFTConfig()}


def fitted(policy: OpenVLAPolicy, algorithm: PPOConfig = HL_GAUSS) -> OpenVLAPolicy:
    fit_critic(policy, TrainConfig(policy=OPTIONS[policy.architecture], algorithm=algorithm))  # type: ignore[arg-type]
    policy.with_value = True
    return policy


def value_of(policy: OpenVLAPolicy) -> torch.Tensor:
    policy.with_value = True
    value = policy.act(observation(3, policy), rng(3), "greedy").value  # type: ignore[arg-type]
    assert value is not None
    return value


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
def test_the_value_is_the_mean_of_its_bins_and_teaches_the_policy(kind: str) -> None:
    policy = fitted(_policy(kind))
    assert "51" not in policy.fresh_critic
    assert "reads the last prompt token and says 21 bins over 0 to 1" in policy.fresh_critic
    torch.testing.assert_close(value_of(policy), torch.full((3,), 0.5))
    randomise(policy.model.value_head, 1, scale=0.3)
    obs = observation(3, policy)  # type: ignore[arg-type]
    out = policy.act(obs, rng(3), "sample")
    again = policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay)
    bins = policy.model.value_head.bins
    assert bins is not None
    assert out.value is not None
    assert again.value is not None
    assert again.value_logits is not None
    torch.testing.assert_close(bins.mean(again.value_logits), again.value)
    torch.testing.assert_close(again.value.detach(), out.value, rtol=1e-4, atol=1e-4)
    again.value.sum().backward()
    assert policy.model.language_model.model.embed_tokens.weight.grad is not None


def test_checkpoints_with_and_without_adapters_keep_it(tmp_path: Path) -> None:
    save_policy(_policy(), tmp_path / "base", {})
    policy = fitted(load_policy(tmp_path / "base"))
    adapt_policy(policy, tmp_path / "base", 4)
    randomise(policy.model.value_head, 1, scale=0.3)
    save_policy(policy, tmp_path / "adapted", {})  # over a base whose head has one output
    again = load_policy(tmp_path / "adapted")
    assert torch.equal(value_of(again), value_of(policy))
    assert fitted(again).fresh_critic == "", "a resumed run goes on with it"
    assert all(parameter.requires_grad for parameter in again.model.value_head.parameters())

    whole = fitted(oft_policy(**PUBLISHED))
    randomise(whole.model.value_head, 2, scale=0.3)
    save_policy(whole, tmp_path / "whole", {})
    export_policy(whole, tmp_path / "exported", {}, None)
    for name in ("whole", "exported"):
        assert torch.equal(value_of(load_policy(tmp_path / name)), value_of(whole)), name
    assert fitted(load_policy(tmp_path / "whole"), PPOConfig()).fresh_critic.endswith("had learned and does not fit")
