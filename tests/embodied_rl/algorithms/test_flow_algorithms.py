"""PPO and GRPO on a flow policy: the same code as for token policies, through the whole rollout and learner."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig, RatioLevel
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.policies.flow import FlowExploration, FlowSettings
from embodied_rl.policies.pi0.config import Pi0ModelConfig, gemma, siglip
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.toy import ACTION_DIM, CHUNK, INSTRUCTIONS, SIZE, TASKS, ToyEnv

METHODS: tuple[FlowExploration, ...] = ("flow_sde", "flow_noise")


def flow_policy(method: FlowExploration, *, with_value: bool) -> Pi0Policy:
    """A pi0 for the toy world: one camera, a longer horizon than a chunk, padded actions."""
    config = Pi0ModelConfig(
        vision=siglip(SIZE, 2, 16, 1, 2, 32),
        decoder=gemma(64, 16, 2, 2, 8, 32),
        expert=gemma(0, 16, 2, 2, 8, 32),
        horizon=CHUNK + 1,
        chunk_len=CHUNK,
        max_action_dim=3,
        max_state_dim=4,
        action_dim=ACTION_DIM,
        proprio_dim=2,
        num_cameras=1,
        learned_positions=True,
        value_hidden=(16, 8),
        noise_hidden=(8, 8),
    )
    flow = FlowSettings(exploration=method, num_inference_steps=3, noise_level=0.8, noise_range=(0.2, 0.6))
    policy = Pi0Policy.fresh(config, INSTRUCTIONS.values(), flow=flow)
    policy.with_value = with_value
    return policy


def setup(
    tmp_path: Path, method: FlowExploration, config: AlgorithmConfig, **options: float
) -> tuple[Learner, RolloutBatch, Pi0Policy]:
    algorithm = make_algorithm(config)
    policy = flow_policy(method, with_value=algorithm.needs_value)
    sampler = EpisodeSampler(1, TASKS, algorithm.group_size)
    collector = Collector(
        ToyEnv(8),
        policy,
        GroupExchange(GroupQueue(sampler, groups=48 // algorithm.group_size, success_rate_range=None)),
        Profiler(),
        final_value=algorithm.needs_final_value,
    )
    batch = collector.collect(0)
    learner = Learner(policy, algorithm, LearnerConfig(**options), seed=0, dump_dir=tmp_path)  # type: ignore[arg-type]
    return learner, batch, policy


def log_probs(policy: Pi0Policy, batch: RolloutBatch) -> torch.Tensor:
    with torch.no_grad():
        out = policy.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay)
    return torch.where(batch.mask, out.log_prob, 0.0).sum(dim=1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", ["token", "action", "chunk"])
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_an_update_makes_good_decisions_likelier_than_bad_ones(
    tmp_path: Path, method: FlowExploration, level: RatioLevel, name: str
) -> None:
    """The learner's own check wants every first ratio at 1; the step must go the way of the advantages."""
    config = (
        GRPOConfig(group_size=8, success_rate_range=None, ratio_level=level)
        if name == "grpo"
        else PPOConfig(ratio_level=level, epochs=1)
    )
    learner, batch, policy = setup(tmp_path, method, config, lr=1e-3, minibatch_size=100_000)
    assert batch.log_prob.shape == (len(batch), CHUNK * ACTION_DIM)
    before = log_probs(policy, batch)
    metrics = learner.update(batch)
    assert all(map(math.isfinite, metrics.values()))
    assert batch.advantage is not None
    moved = log_probs(policy, batch) - before
    good, bad = batch.advantage > 0, batch.advantage < 0
    assert good.any()
    assert bad.any()
    assert moved[good].mean() > moved[bad].mean()


@pytest.mark.parametrize("method", METHODS)
def test_steps_that_never_ran_have_no_part_in_the_update(tmp_path: Path, method: FlowExploration) -> None:
    """Their recorded points may be anything."""
    gradients = []
    for spoil in (False, True):
        learner, batch, policy = setup(
            tmp_path, method, GRPOConfig(group_size=8, success_rate_range=None), minibatch_size=100_000
        )
        batch.mask[::2, ACTION_DIM:] = False
        idle = ~batch.mask.view(len(batch), CHUNK, ACTION_DIM)
        if spoil:
            batch.replay["points"][:, -1, :CHUNK, :ACTION_DIM] += idle * 0.3
        learner.optimizer_step.optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)  # type: ignore[assignment]
        learner.update(batch)
        gradients.append({n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][key], rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_warm_up_moves_the_critic_alone(tmp_path: Path, method: FlowExploration) -> None:
    config = PPOConfig(critic_warmup_iterations=1)
    learner, batch, policy = setup(tmp_path, method, config, lr=1e-2, value_lr=1e-2)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    learner.update(batch)
    moved = {name for name, tensor in policy.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved
    assert all(name.startswith("model.value_head") for name in moved)
    learner.update(batch)
    assert not torch.equal(policy.state_dict()["model.expert.norm.weight"], before["model.expert.norm.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_only_learned_noise_has_an_entropy_to_gain(method: FlowExploration) -> None:
    """Flow-SDE's noise is fixed: its entropy is a constant, without a gradient."""
    policy = flow_policy(method, with_value=False)
    obs = ToyEnv(3).new_observation(3)
    obs.instruction = [next(iter(INSTRUCTIONS.values()))] * 3
    arguments = obs.images, obs.proprio, obs.instruction
    points = torch.randn(3, policy.flow.recorded_steps + 1, CHUNK + 1, 3)
    step = torch.arange(policy.flow.recorded_steps).expand(3, -1)
    entropy = policy.evaluate(*arguments, {"points": points, "step": step}).entropy
    assert np.isfinite(entropy.detach().numpy()).all()
    assert entropy.requires_grad == (method == "flow_noise")
