"""What the critic of a flow policy reads, in acting, in learning, on disk and over a resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.config.policies import Pi0Config, SmolVLAConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.critic import fit_critic
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.policies.pi0 import CriticInput
from embodied_rl.policies.pi0.checkpoint import load_policy, prepare, save_policy
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.embodied_rl.algorithms.test_flow_algorithms import flow_policy
from tests.policies.pi0_models import decision_rng, observation, randomise, tensors, tiny_policy
from tests.toy import TASKS, ToyEnv

PPO = PPOConfig(ratio_level="action", epochs=1)


def with_critic(policy: Pi0Policy, critic_input: CriticInput) -> Pi0Policy:
    """`policy` with that critic, whose value head has learned something."""
    fit_critic(policy, TrainConfig(policy=Pi0Config(critic_input=critic_input), algorithm=PPO))
    randomise(policy.model.value_head, 1, scale=0.5)
    policy.with_value = True
    return policy


def collected(policy: Pi0Policy, version: int) -> RolloutBatch:
    """A batch of the toy world, of `policy` as it is."""
    queue = GroupQueue(EpisodeSampler(version, TASKS, 1), groups=16, success_rate_range=None)
    return Collector(ToyEnv(8), policy, GroupExchange(queue), Profiler(), final_value=True).collect(version)


def parts_with_gradients(policy: Pi0Policy) -> set[str]:
    return {name.split(".")[1] for name, p in policy.named_parameters() if p.grad is not None and p.grad.any()}


def test_without_the_option_the_head_stays() -> None:
    policy = tiny_policy()
    policy.with_value = True
    head = policy.model.value_head
    fit_critic(policy, TrainConfig(policy=Pi0Config(), algorithm=PPOConfig()))
    assert policy.model.value_head is head
    assert policy.traits.fresh_critic == ""


@pytest.mark.parametrize("critic_input", ["action_tokens", "prefix"])
def test_it_says_in_learning_what_it_said_in_acting_and_teaches_the_head_alone(critic_input: CriticInput) -> None:
    policy = with_critic(tiny_policy(), critic_input)
    policy.flow = replace(policy.flow, exploration="flow_noise")
    obs = observation(3)
    out = policy.act(obs, decision_rng(3), "sample")
    again = policy.evaluate(*tensors(obs), out.replay).value
    assert out.value is not None
    assert again is not None
    torch.testing.assert_close(again.detach(), out.value, rtol=0, atol=1e-5)
    assert again.std() > 1e-4
    again.sum().backward()
    assert parts_with_gradients(policy) == {"value_head"}


@pytest.mark.parametrize("critic_input", ["action_tokens", "prefix"])
def test_attached_it_teaches_what_it_reads(critic_input: CriticInput) -> None:
    policy = with_critic(tiny_policy(), critic_input)
    prepare(policy, Pi0Config(critic_input=critic_input, detach_critic_input=False), Path())
    obs = observation(3)
    out = policy.act(obs, decision_rng(3), "sample")
    value = policy.evaluate(*tensors(obs), out.replay).value
    assert value is not None
    value.sum().backward()
    found = parts_with_gradients(policy)
    assert {"value_head", "language", "vision"} <= found
    assert ("expert" in found) == (critic_input == "action_tokens")


def test_a_critic_that_cannot_teach_or_is_not_there_is_refused() -> None:
    for kind in (Pi0Config, SmolVLAConfig):
        with pytest.raises(UserError, match="frozen language model"):
            kind(critic_input="prefix", detach_critic_input=False, train_expert_only=True)
        kind(critic_input="prefix", detach_critic_input=False)
        with pytest.raises(UserError, match="critic-input is for PPO"):
            TrainConfig(policy=kind(critic_input="prefix"), algorithm=GRPOConfig()).check()
        with pytest.raises(UserError, match="no-detach-critic-input is for PPO"):
            TrainConfig(policy=kind(detach_critic_input=False), algorithm=GRPOConfig()).check()
    stored, frozen = with_critic(tiny_policy(), "prefix"), Pi0Config(detach_critic_input=False, train_expert_only=True)
    with pytest.raises(UserError, match="frozen language model"):
        fit_critic(stored, TrainConfig(policy=frozen, algorithm=PPO))


def test_a_head_that_reads_something_else_is_replaced_and_that_is_said() -> None:
    policy = tiny_policy()
    head = policy.model.value_head
    randomise(head, 1, scale=0.5)
    fit_critic(policy, TrainConfig(policy=Pi0Config(critic_input="action_tokens"), algorithm=PPO))
    assert policy.model.value_head is head, "it goes on"
    assert policy.traits.fresh_critic == ""
    fit_critic(policy, TrainConfig(policy=Pi0Config(critic_input="prefix"), algorithm=PPO))
    assert policy.traits.fresh_critic == "a fresh value head that reads prefix; the checkpoint's reads action_tokens"
    assert policy.model.value_head is not head
    policy.with_value = True
    value = policy.act(observation(2), decision_rng(2), "sample").value
    assert value is not None
    assert not value.any()
    assert policy.config is policy.model.config


def test_a_checkpoint_keeps_its_critic(tmp_path: Path) -> None:
    policy = with_critic(tiny_policy(), "prefix")
    save_policy(policy, tmp_path / "one", {})
    again = load_policy(tmp_path / "one")
    assert again.config == policy.config
    again.with_value = True
    one, two = (p.act(observation(3), decision_rng(3), "greedy") for p in (policy, again))
    assert one.value is not None
    assert two.value is not None
    assert torch.equal(one.value, two.value)


def test_what_earlier_versions_wrote_is_read(tmp_path: Path) -> None:
    save_policy(tiny_policy(), tmp_path / "old", {})
    path = tmp_path / "old" / "config.json"
    content = json.loads(path.read_text())
    content["model"]["critic_input"] = "suffix"
    path.write_text(json.dumps(content))
    assert load_policy(tmp_path / "old").config == tiny_policy().config


def test_a_resumed_run_ends_in_the_same_weights(tmp_path: Path) -> None:
    """Attached: two updates in one go, or the second one with what the disk has of the first."""

    def attached() -> Pi0Policy:
        policy = with_critic(flow_policy("flow_sde", with_value=True), "prefix")
        policy.detach_critic_input = False
        return policy

    def learner_of(policy: Pi0Policy) -> Learner:
        options = LearnerConfig(lr=1e-3, value_lr=1e-2, minibatch_size=100)
        return Learner(policy, make_algorithm(PPO), options, seed=0, dump_dir=tmp_path)

    policy = attached()
    learner = learner_of(policy)
    learner.update(collected(policy, 0))
    save_policy(policy, tmp_path / "policy", {})
    torch.save(learner.state_dict(), tmp_path / "learner.pt")
    metrics = learner.update(collected(policy, 1))

    stored = load_policy(tmp_path / "policy")
    fit_critic(stored, TrainConfig(policy=Pi0Config(critic_input="prefix"), algorithm=PPO))
    assert stored.traits.fresh_critic == ""
    again = attached()
    again.model.load_state_dict(stored.model.state_dict())  # as a run does: copies, which lie in memory as before
    resumed = learner_of(again)
    resumed.load_state_dict(torch.load(tmp_path / "learner.pt"))
    assert resumed.update(collected(again, 1)) == metrics
    for name, weight in policy.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
