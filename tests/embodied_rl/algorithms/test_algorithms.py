"""PPO and GRPO on whole batches: which rows get which advantage, and what the loss gradient does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.base import Rows
from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.errors import UserError
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.toy import TASKS, ToyEnv, ToyPolicy


def batch_for(config: AlgorithmConfig, policy: ToyPolicy) -> RolloutBatch:
    algorithm = make_algorithm(config)
    sampler = EpisodeSampler(1, TASKS, algorithm.group_size)
    collector = Collector(
        ToyEnv(8),
        policy,
        GroupExchange(
            GroupQueue(
                sampler,
                groups=32 // algorithm.group_size,
                success_rate_range=algorithm.success_rate_range,
                max_oversampling=algorithm.max_oversampling,
            )
        ),
        Profiler(),
        final_value=algorithm.needs_final_value,
    )
    return collector.collect(0)


def gradient(config: AlgorithmConfig, policy: ToyPolicy, batch: RolloutBatch, iteration: int = 9) -> torch.Tensor:
    algorithm = make_algorithm(config)
    weight, _ = algorithm.prepare(batch, policy.terms_per_step)
    rows = Rows(batch, torch.arange(len(batch)), weight, torch.full((len(batch),), 1 / len(batch)))
    policy.zero_grad()
    algorithm.loss(policy, rows, iteration).loss.backward()
    assert policy.head.weight.grad is not None
    return policy.head.weight.grad.clone()


def test_grpo_gives_every_row_the_advantage_of_its_episode() -> None:
    config = GRPOConfig(group_size=4)
    batch = batch_for(config, ToyPolicy())
    make_algorithm(config).prepare(batch, 2)
    assert batch.advantage is not None
    for index, episode in enumerate(batch.episodes):
        group = [e.reward for e in batch.episodes if e.spec.group == episode.spec.group]
        mean = sum(group) / 4
        std = (sum((score - mean) ** 2 for score in group) / 3) ** 0.5
        rows = batch.advantage[batch.episode == index]
        assert rows.tolist() == pytest.approx([(episode.reward - mean) / (std + 1e-6)] * len(rows), abs=1e-5)


def test_grpo_raises_the_probability_of_what_succeeded_and_lowers_the_rest() -> None:
    policy = ToyPolicy()
    config = GRPOConfig()
    batch = batch_for(config, policy)
    gradient(config, policy, batch)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad)
    after = policy.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay).log_prob
    assert batch.advantage is not None
    change = ((after - batch.log_prob) * batch.mask).sum(1)
    assert (change * batch.advantage).sum() > 0


def test_ppo_gradient_equals_a_plain_formula_at_ratio_1() -> None:
    """At ratio 1 the gradient is that of -mean over executed terms of A log pi, whatever the clip."""
    policy = ToyPolicy()
    config = PPOConfig(entropy_coef=0.0)
    batch = batch_for(config, policy)
    ours = gradient(config, policy, batch)
    out = policy.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay)
    assert batch.advantage is not None
    plain = -(batch.advantage[:, None] * out.log_prob)[batch.mask].mean()
    (expected,) = torch.autograd.grad(plain, policy.head.weight)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_a_value_of_any_unit_can_be_learned(offset: float) -> None:
    """Rewards of a thousand: the critic has moved by 2 % of it since the rollout, and still has a gradient; so also
    where all returns are nearly alike."""
    slopes = []
    for clip in (0.2, None):
        policy = ToyPolicy()
        config = PPOConfig(value_clip=clip, gamma=1.0, gae_lambda=1.0, bootstrap_truncated=False)
        batch = batch_for(config, policy)
        assert batch.value is not None
        ends = torch.cat([batch.episode[1:] != batch.episode[:-1], torch.ones(1, dtype=torch.bool)])
        batch.reward = 1000 * batch.reward + offset * ends
        with torch.no_grad():
            policy.value_head.bias.add_(20.0)
        gradient(config, policy, batch)
        assert policy.value_head.bias.grad is not None
        slopes.append(policy.value_head.bias.grad.clone())
    assert slopes[0] == slopes[1] != 0


def test_the_clip_of_values_by_hand() -> None:
    """Returns of root mean square 5 widen it to 1, those below 1 leave it at 0.2."""
    for scale, moved in ((5.0, 1.0), (0.5, 0.2)):
        policy, config = ToyPolicy(), PPOConfig(entropy_coef=0.0, critic_warmup_iterations=99)
        batch = batch_for(config, policy)
        make_algorithm(config).prepare(batch, policy.terms_per_step)
        batch.value, batch.returns = torch.zeros(len(batch)), torch.full((len(batch),), scale)
        with torch.no_grad():
            policy.value_head.bias.fill_(2.0)
        rows = Rows(batch, torch.arange(len(batch)), torch.zeros(batch.mask.shape), torch.full((len(batch),), 1.0))
        error = max((2.0 - scale) ** 2, (moved - scale) ** 2)
        found = make_algorithm(config).loss(policy, rows, 0).loss.item()
        assert found == pytest.approx(config.value_coef * 0.5 * error * len(batch))


@pytest.mark.parametrize("config", [GRPOConfig(), PPOConfig()])
def test_levels_agree_in_sign_but_not_in_value(config: AlgorithmConfig) -> None:
    policy = ToyPolicy()
    batch = batch_for(config, policy)
    by_level = {
        level: gradient(replace(config, ratio_level=level), policy, batch) for level in ("token", "action", "chunk")
    }
    token, chunk = by_level["token"].flatten(), by_level["chunk"].flatten()
    assert torch.cosine_similarity(token, chunk, dim=0) > 0.8
    assert not torch.allclose(token, chunk, rtol=0.1)
    assert not torch.allclose(by_level["action"].flatten(), chunk, rtol=0.01)


def test_token_and_trajectory_norms_differ_when_lengths_do() -> None:
    policy = ToyPolicy()
    config = GRPOConfig()
    batch = batch_for(config, policy)
    assert len({episode.num_steps for episode in batch.episodes}) > 1
    one, two = (gradient(replace(config, loss_norm=norm), policy, batch) for norm in ("token", "trajectory"))
    assert not torch.allclose(one, two, rtol=0.01)


def test_normalised_advantages_have_mean_0_and_deviation_1() -> None:
    batch = batch_for(PPOConfig(), ToyPolicy())
    make_algorithm(PPOConfig()).prepare(batch, 2)
    assert batch.advantage is not None
    assert batch.advantage.mean().item() == pytest.approx(0, abs=1e-5)
    assert batch.advantage.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_without_bootstrap_a_timeout_is_worth_nothing() -> None:
    policy = ToyPolicy()
    with torch.no_grad():
        policy.value_head.bias.fill_(0.7)
    counting = batch_for(PPOConfig(), policy)
    ignoring = batch_for(PPOConfig(bootstrap_truncated=False), policy)
    assert [e.final_value for e in counting.episodes] == pytest.approx([0.7 * e.truncated for e in counting.episodes])
    assert any(e.truncated for e in counting.episodes)
    assert {e.final_value for e in ignoring.episodes} == {0.0}


def test_in_warm_up_only_the_critic_gets_a_gradient() -> None:
    policy = ToyPolicy()
    config = PPOConfig(critic_warmup_iterations=2, entropy_coef=0.1)
    batch = batch_for(config, policy)
    algorithm = make_algorithm(config)
    weight, _ = algorithm.prepare(batch, 2)
    rows = Rows(batch, torch.arange(len(batch)), weight, torch.full((len(batch),), 1 / len(batch)))
    policy.zero_grad()
    algorithm.loss(policy, rows, 1).loss.backward()
    assert policy.head.weight.grad is None
    assert policy.value_head.weight.grad is not None
    assert policy.value_head.weight.grad.abs().sum() > 0
    assert gradient(config, policy, batch, iteration=2).abs().sum() > 0


def test_ppo_without_a_critic_is_refused() -> None:
    batch = batch_for(GRPOConfig(), ToyPolicy(with_value=False))
    with pytest.raises(RuntimeError, match="value head"):
        make_algorithm(PPOConfig()).prepare(batch, 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GRPOConfig(group_size=1), "group_size must be at least 2"),
        (lambda: GRPOConfig(success_rate_range=(0.9, 0.1)), "success_rate_range must satisfy"),
        (lambda: GRPOConfig(group_size=3, success_rate_range=(0.4, 0.6)), "holds no success rate of 3 episodes"),
        (lambda: GRPOConfig(clip_low=0.0), "clip_low"),
        (lambda: GRPOConfig(epochs=0), "epochs"),
        (lambda: PPOConfig(gamma=1.5), "gamma"),
        (lambda: PPOConfig(value_coef=0.0), "value_coef"),
        (lambda: PPOConfig(value_clip=-1.0), "value_clip"),
    ],
)
def test_options_out_of_range_are_refused(build: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build()  # type: ignore[operator]


@pytest.mark.process
def test_configs_are_importable_without_torch() -> None:
    """The command line composes them, and must start within a second."""
    import subprocess
    import sys

    modules = ["algorithms.config", "learner.config", "rollout.config", "evaluation.config"]
    code = "import sys; " + "; ".join(f"import embodied_rl.{m}" for m in modules) + "; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
