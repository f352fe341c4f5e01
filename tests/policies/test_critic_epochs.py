"""Further passes of the value head alone: what moves, what does not, and what they do not go with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.config.policies import OpenVLAConfig, Pi0Config
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.critic import fit_critic
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.critic_update import critic_rows, join_rows
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.learner import Learner
from embodied_rl.policies.flow import FlowExploration
from embodied_rl.policies.pi0 import CriticInput
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policy import CRITIC_INPUT
from tests.embodied_rl.algorithms.test_flow_algorithms import flow_policy
from tests.policies.pi0_models import decision_rng, observation, randomise, tiny_policy
from tests.policies.test_critic_input import collected

PPO = PPOConfig(ratio_level="action", epochs=1)
LEARNER = LearnerConfig(lr=1e-3, value_lr=1e-2, minibatch_size=100)


def fitted(policy: Pi0Policy, passes: int, critic_input: CriticInput = "prefix") -> Pi0Policy:
    """`policy` as a run with so many passes sets it up."""
    config = TrainConfig(policy=Pi0Config(critic_input=critic_input), algorithm=replace(PPO, critic_epochs=passes))
    fit_critic(policy, config)
    policy.with_value = True
    return policy


def policy_with(passes: int, critic_input: CriticInput = "prefix") -> Pi0Policy:
    """A policy of the toy world."""
    return fitted(flow_policy("flow_sde", with_value=True), passes, critic_input)


def learner_of(policy: Pi0Policy, passes: int, folder: Path) -> Learner:
    return Learner(policy, make_algorithm(replace(PPO, critic_epochs=passes)), LEARNER, seed=0, dump_dir=folder)


def weights(policy: Pi0Policy) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in policy.state_dict().items()}


@pytest.mark.parametrize("exploration", ["flow_sde", "flow_noise"])
@pytest.mark.parametrize("critic_input", ["action_tokens", "prefix"])
def test_act_leaves_what_the_critic_read(critic_input: CriticInput, exploration: FlowExploration) -> None:
    policy = fitted(tiny_policy(), 1, critic_input)
    policy.flow = replace(policy.flow, exploration=exploration)
    randomise(policy.model.value_head, 1, scale=0.5)
    out = policy.act(observation(3), decision_rng(3), "sample")
    assert out.value is not None
    assert policy.traits.critic_value is not None
    again = policy.traits.critic_value(out.replay[CRITIC_INPUT])
    torch.testing.assert_close(again.detach(), out.value, rtol=0, atol=1e-6)
    assert out.value.std() > 1e-4


def test_without_such_passes_nothing_more_is_recorded() -> None:
    policy = fitted(tiny_policy(), 0)
    assert CRITIC_INPUT not in policy.act(observation(2), decision_rng(2), "sample").replay
    assert policy.traits.critic_value is None


@pytest.mark.parametrize("critic_input", ["action_tokens", "prefix"])
def test_the_head_alone_moves_and_explains_more(critic_input: CriticInput, tmp_path: Path) -> None:
    found, errors = {}, {}
    for passes in (0, 50):
        policy = policy_with(passes, critic_input)
        batch = collected(policy_with(1, critic_input), 0)  # of the same weights: with what the critic read
        learner_of(policy, passes, tmp_path).update(batch)
        found[passes] = weights(policy)
        assert batch.returns is not None
        value = policy.critic_value(batch.replay[CRITIC_INPUT])
        errors[passes] = (value - batch.returns).detach().square().mean().item()
    moved = {name for name, weight in found[0].items() if not torch.equal(weight, found[50][name])}
    assert moved
    assert all(name.startswith("model.value_head.") for name in moved)
    assert errors[50] < 0.9 * errors[0]


def test_groups_one_by_one_teach_it_what_the_whole_batch_does(tmp_path: Path) -> None:
    """In one minibatch, where both ways prepare the same rows."""
    by_groups = LearnerConfig(lr=1e-3, value_lr=1e-2, minibatch_size=None, minibatch_groups=1000)
    by_rows = replace(by_groups, minibatch_size=10**6, minibatch_groups=None)
    found = []
    for options in (by_rows, by_groups):
        policy = policy_with(5)
        algorithm = make_algorithm(replace(PPO, critic_epochs=5))
        learner = Learner(policy, algorithm, options, seed=0, dump_dir=tmp_path)
        batch = collected(policy, 0)
        if options is by_groups:
            for group in split_groups(batch):
                learner.accumulate(group)
        learner.update(batch)
        found.append(policy.model.value_head.state_dict())
    for name, weight in found[0].items():
        torch.testing.assert_close(found[1][name], weight, rtol=0, atol=1e-5, msg=name)


def test_ranks_share_the_rows() -> None:
    """Each has the rows of its own episodes, at their places in the whole batch."""
    policy = policy_with(1)
    batch = collected(policy, 0)
    algorithm = make_algorithm(replace(PPO, critic_epochs=1))
    algorithm.prepare(batch, policy.terms_per_step)
    whole = critic_rows(batch, Collectives())
    halves = [critic_rows(batch, Collectives(rank, 2)) for rank in range(2)]
    assert sum(len(half.place) for half in halves) == whole.total == len(batch)
    for half in halves:
        assert half.total == whole.total
        assert torch.equal(half.read, whole.read[half.place])
        assert torch.equal(half.returns, whole.returns[half.place])
    joined = join_rows([whole, halves[1]])
    assert joined.total == 2 * len(batch)
    assert torch.equal(joined.place[len(batch) :], halves[1].place + len(batch))


def test_a_resumed_run_ends_in_the_same_weights(tmp_path: Path) -> None:
    policy = policy_with(3)
    learner = learner_of(policy, 3, tmp_path)
    learner.update(collected(policy, 0))
    half, state = weights(policy), learner.state_dict()
    torch.save(state, tmp_path / "learner.pt")
    learner.update(collected(policy, 1))

    again = policy_with(3)
    again.load_state_dict(half)
    resumed = learner_of(again, 3, tmp_path)
    resumed.load_state_dict(torch.load(tmp_path / "learner.pt"))
    resumed.update(collected(again, 1))
    for name, weight in policy.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name]), name


def test_what_they_do_not_go_with_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="critic_epochs must not be negative"):
        PPOConfig(critic_epochs=-1)
    fits = TrainConfig(policy=Pi0Config(), algorithm=replace(PPO, critic_epochs=2))
    fits.check()
    for other, words in (
        ({"policy": OpenVLAConfig()}, "pi0, pi0.5 and SmolVLA"),
        ({"policy": Pi0Config(detach_critic_input=False)}, "no-detach-critic-input"),
        ({"learner": LearnerConfig(num_processes=2, fsdp=True)}, "fsdp"),
    ):
        with pytest.raises(UserError, match=words):
            replace(fits, **other).check()
