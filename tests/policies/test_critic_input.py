"""What the critic of a flow policy reads and says, in acting, in learning, on disk and over a resume."""

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
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.groups import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.embodied_rl.algorithms.test_flow_algorithms import flow_policy
from tests.policies.pi0_models import decision_rng, observation, randomise, tensors, tiny_policy
from tests.toy import TASKS, ToyEnv

HL_GAUSS = PPOConfig(value_loss="hl_gauss", value_bins=21, ratio_level="action", epochs=1)


def with_critic(policy: Pi0Policy, critic_input: CriticInput, algorithm: PPOConfig = HL_GAUSS) -> Pi0Policy:
    """`policy` with that critic, whose value head has learned something."""
    fit_critic(policy, TrainConfig(policy=Pi0Config(critic_input=critic_input), algorithm=algorithm))
    randomise(policy.model.value_head, 1, scale=0.5)
    policy.with_value = True
    return policy


def collected(policy: Pi0Policy, version: int) -> RolloutBatch:
    """A batch of the toy world, of `policy` as it is."""
    queue = GroupQueue(EpisodeSampler(version, TASKS, 1), groups=16, success_rate_range=None)
    return Collector(ToyEnv(8), policy, queue, Profiler(), final_value=True).collect(version)


def parts_with_gradients(policy: Pi0Policy) -> set[str]:
    return {name.split(".")[1] for name, p in policy.named_parameters() if p.grad is not None and p.grad.any()}


@pytest.mark.parametrize("method", ["flow_sde", "flow_noise"])
def test_all_steps_is_the_mean_over_every_denoising_step(method: str) -> None:
    policy = with_critic(tiny_policy(), "all_steps", PPOConfig())
    policy.flow = replace(policy.flow, exploration=method, num_inference_steps=4)  # type: ignore[arg-type]
    obs, rng = observation(3), decision_rng(3)
    seen: list[torch.Tensor] = []
    whole = policy.denoise_step

    def spied(*arguments: object) -> object:
        out = whole(*arguments)  # type: ignore[arg-type]
        seen.append(out.summary)
        return out

    policy.denoise_step = spied  # type: ignore[assignment, method-assign]
    out = policy.act(obs, rng, "sample")
    del policy.denoise_step
    assert len(seen) == 4
    mean = sum(part[:, 0] for part in seen) / 4
    assert out.value is not None
    torch.testing.assert_close(out.replay["critic_input"], mean)
    torch.testing.assert_close(out.value, policy.model.value_head(mean)[:, 0])
    again = policy.evaluate(*tensors(obs), out.replay).value
    assert again is not None
    torch.testing.assert_close(again.detach(), out.value, rtol=0, atol=1e-6)
    # the recorded step alone says something else, as does a part of the steps
    one = policy.model.value_head(sum(part[:, 0] for part in seen[:3]) / 3)[:, 0]
    assert (one - out.value).abs().max() > 1e-5


def test_as_shipped_nothing_more_is_recorded() -> None:
    policy = tiny_policy()
    policy.with_value = True
    head = policy.model.value_head
    fit_critic(policy, TrainConfig(policy=Pi0Config(), algorithm=PPOConfig()))
    out = policy.act(observation(2), decision_rng(2), "sample")
    assert set(out.replay) == {"points", "step"}
    assert policy.model.value_head is head
    assert policy.fresh_critic == ""
    assert policy.evaluate(*tensors(observation(2)), out.replay).value_logits is None


@pytest.mark.parametrize("critic_input", ["action_tokens", "all_steps", "prefix"])
def test_a_distribution_says_its_mean_and_teaches_the_head_alone(critic_input: CriticInput) -> None:
    policy = with_critic(tiny_policy(), critic_input)
    policy.flow = replace(policy.flow, exploration="flow_noise")
    obs = observation(3)
    out = policy.act(obs, decision_rng(3), "sample")
    again = policy.evaluate(*tensors(obs), out.replay)
    assert again.value is not None
    assert again.value_logits is not None
    assert again.value_logits.shape == (3, 21)
    assert policy.model.value_head.bins is not None
    torch.testing.assert_close(policy.model.value_head.bins.mean(again.value_logits), again.value)
    assert again.value.std() > 1e-4
    again.value.sum().backward()
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
        with pytest.raises(UserError, match="no-detach-critic-input does nothing with critic input all_steps"):
            kind(critic_input="all_steps", detach_critic_input=False)
        with pytest.raises(UserError, match="frozen language model"):
            kind(critic_input="prefix", detach_critic_input=False, train_expert_only=True)
        kind(critic_input="prefix", detach_critic_input=False)
        with pytest.raises(UserError, match="critic-input is for PPO"):
            TrainConfig(policy=kind(critic_input="prefix"), algorithm=GRPOConfig()).check()
        with pytest.raises(UserError, match="no-detach-critic-input is for PPO"):
            TrainConfig(policy=kind(detach_critic_input=False), algorithm=GRPOConfig()).check()
    stored = with_critic(tiny_policy(), "all_steps")
    with pytest.raises(UserError, match="critic input all_steps"):
        fit_critic(stored, TrainConfig(policy=Pi0Config(detach_critic_input=False), algorithm=PPOConfig()))


def test_a_head_that_does_not_fit_is_replaced_and_that_is_said() -> None:
    policy = with_critic(tiny_policy(), "action_tokens")
    head = policy.model.value_head
    fit_critic(policy, TrainConfig(policy=Pi0Config(critic_input="all_steps"), algorithm=HL_GAUSS))
    assert policy.model.value_head is head, "of the same width, it goes on"
    for options, critic_input in ((HL_GAUSS, "prefix"), (PPOConfig(), "prefix")):
        randomise(policy.model.value_head, 1, scale=0.5)
        fit_critic(policy, TrainConfig(policy=Pi0Config(critic_input=critic_input), algorithm=options))  # type: ignore[arg-type]
        assert policy.model.value_head is not head
        assert not policy.model.value_head.has_learned
        assert policy.fresh_critic.endswith("the checkpoint's had learned and does not fit")
        assert "reads prefix" in policy.fresh_critic
        head = policy.model.value_head
    fit_critic(policy, TrainConfig(policy=Pi0Config(), algorithm=HL_GAUSS))
    assert policy.fresh_critic.endswith("the checkpoint's does not fit and had not learned")
    assert policy.config is policy.model.config


def test_a_checkpoint_keeps_its_critic(tmp_path: Path) -> None:
    policy = with_critic(tiny_policy(), "all_steps", replace(HL_GAUSS, value_range=(-1.0, 2.0)))
    save_policy(policy, tmp_path / "one", {})
    again = load_policy(tmp_path / "one")
    assert again.config == policy.config
    again.with_value = True
    one, two = (p.act(observation(3), decision_rng(3), "greedy") for p in (policy, again))
    assert one.value is not None
    assert two.value is not None
    assert torch.equal(one.value, two.value)
    assert again.model.value_head.bins == policy.model.value_head.bins


def test_what_earlier_versions_wrote_is_read(tmp_path: Path) -> None:
    save_policy(tiny_policy(), tmp_path / "old", {})
    path = tmp_path / "old" / "config.json"
    content = json.loads(path.read_text())
    content["model"]["critic_input"] = "suffix"
    for name in ("value_bins", "value_range"):
        del content["model"][name]
    path.write_text(json.dumps(content))
    assert load_policy(tmp_path / "old").config == tiny_policy().config


def test_a_resumed_run_ends_in_the_same_weights(tmp_path: Path) -> None:
    """All of it on: two updates in one go, or the second one with what the disk has of the first."""

    def learner_of(policy: Pi0Policy) -> Learner:
        options = LearnerConfig(lr=1e-3, value_lr=1e-2, minibatch_size=100)
        return Learner(policy, make_algorithm(HL_GAUSS), options, seed=0, dump_dir=tmp_path)

    policy = with_critic(flow_policy("flow_sde", with_value=True), "all_steps")
    learner = learner_of(policy)
    learner.update(collected(policy, 0))
    save_policy(policy, tmp_path / "policy", {})
    torch.save(learner.state_dict(), tmp_path / "learner.pt")
    metrics = learner.update(collected(policy, 1))

    stored = load_policy(tmp_path / "policy")
    fit_critic(stored, TrainConfig(policy=Pi0Config(critic_input="all_steps"), algorithm=HL_GAUSS))
    assert stored.fresh_critic == ""
    again = with_critic(flow_policy("flow_sde", with_value=True), "all_steps")
    again.model.load_state_dict(stored.model.state_dict())  # as a run does: copies, which lie in memory as before
    resumed = learner_of(again)
    resumed.load_state_dict(torch.load(tmp_path / "learner.pt"))
    assert resumed.update(collected(again, 1)) == metrics
    for name, weight in policy.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name
