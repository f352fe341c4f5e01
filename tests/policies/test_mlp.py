"""The state policy: densities, statistics, checkpoints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.factory.policies import load_policy
from embodied_rl.policies.mlp import MLPConfig
from embodied_rl.policies.mlp.checkpoint import MLPOptions, fresh, load, save_policy
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.model import MLPModel
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation

CONFIG = MLPModelConfig(observation_dim=5, action_dim=2, hidden=(16,), chunk_len=3)
NONE = torch.zeros(4, 0, 0, 0, 3, dtype=torch.uint8)


def observation(rows: int = 4, seed: int = 0) -> Observation:
    values = torch.from_numpy(np.random.default_rng(seed).normal(3, 2, (rows, 5)).astype(np.float32))
    return Observation(NONE[:1].expand(rows, -1, -1, -1, -1), values[:, :2], ["task"] * rows, values[:, 2:])


def make(squash: bool = False, seed: int = 0) -> MLPPolicy:
    policy = MLPPolicy.fresh(
        MLPModelConfig(observation_dim=5, action_dim=2, hidden=(16,), chunk_len=3, squash=squash), seed=seed
    )
    with torch.no_grad():
        for parameter in policy.parameters():  # away from the small means of a new policy
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)), alpha=0.3)
    policy.with_value = True
    return policy


def rng(rows: int = 4) -> DecisionRng:
    return DecisionRng(np.arange(rows), np.zeros(rows, np.int64))


@pytest.mark.parametrize("squash", [False, True])
def test_evaluate_repeats_what_act_sampled(squash: bool) -> None:
    policy, obs = make(squash), observation()
    out = policy.act(obs, rng(), "sample")
    assert out.actions.shape == (4, 3, 2)
    assert out.actions.abs().max() <= 1
    again = policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay)
    torch.testing.assert_close(again.log_prob, out.log_prob)
    assert again.value is not None
    torch.testing.assert_close(again.value, out.value)
    again.log_prob.sum().backward()
    assert policy.model.log_std.grad is not None


@pytest.mark.parametrize("squash", [False, True])
def test_densities_integrate_to_one(squash: bool) -> None:
    """Over the actions themselves where they are squashed: the change of volume must be counted."""
    policy = make(squash)
    grid = torch.linspace(-0.99999, 0.99999, 200_001) if squash else torch.linspace(-30, 30, 200_001)
    drawn = grid.atanh() if squash else grid
    mean = torch.tensor([0.4, -1.1, 0.0, 2.0, 0.3, 0.1])
    log_std = torch.full((6,), -0.3)
    density = policy._log_prob(mean, log_std, drawn[:, None].expand(-1, 6)).exp()
    mass = torch.trapezoid(density, grid, dim=0)
    torch.testing.assert_close(mass, torch.ones(6), atol=3e-3, rtol=0)


def test_the_entropy_is_that_of_the_gaussian() -> None:
    policy, obs = make(), observation()
    out = policy.act(obs, rng(), "sample")
    entropy = policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay).entropy
    _, log_std = policy.model.action(policy.model.normalised(out.replay["observed"]))
    exact = torch.distributions.Normal(torch.zeros(4, 6), log_std.exp()).entropy()
    torch.testing.assert_close(entropy, exact)


def squashed_entropy(mean: float, std: float) -> float:
    """-sum p(a) log p(a) da of a = tanh(x), in float64 over actions."""
    x = np.linspace(mean - 10 * std, mean + 10 * std, 400_001)
    action_density = np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi)) * np.cosh(x) ** 2
    log_density = np.log(np.maximum(action_density, 1e-300))
    return float(-np.trapezoid(action_density * log_density / np.cosh(x) ** 2, x))


@pytest.mark.parametrize(("std", "known"), [(0.1, None), (0.6, 0.594), (1.3, 0.550), (2.5, -0.520), (2.7, None)])
def test_the_entropy_of_a_squashed_gaussian_and_its_slope(std: float, known: float | None) -> None:
    """Of its actions; it falls above a std of 0.87, where they crowd at the bounds."""
    policy, obs = make(squash=True), observation()
    policy.model.log_std.data.fill_(math.log(std))
    out = policy.act(obs, rng(), "sample")
    mean, _ = policy.model.action(policy.model.normalised(out.replay["observed"]))
    entropy = policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay).entropy
    for term in range(3):
        assert float(entropy[0, term].detach()) == pytest.approx(
            squashed_entropy(float(mean[0, term].detach()), std), abs=1e-4
        )
    if known is not None:
        assert squashed_entropy(0.0, std) == pytest.approx(known, abs=5e-4)
    (slope,) = torch.autograd.grad(entropy[0, 0], policy.model.log_std)
    low, high = (squashed_entropy(float(mean[0, 0].detach()), std * math.exp(step)) for step in (-1e-3, 1e-3))
    assert float(slope[0]) == pytest.approx((high - low) / 2e-3, abs=2e-3)
    again = policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay).entropy
    assert torch.equal(entropy, again), "no sample"


def test_greedy_takes_the_mean_and_rows_do_not_depend_on_each_other() -> None:
    policy, obs = make(), observation()
    mean, _ = policy.model.action(policy.model.normalised(torch.cat([obs.proprio, obs.state], dim=1)))  # type: ignore[list-item]
    greedy = policy.act(obs, rng(), "greedy").actions
    torch.testing.assert_close(greedy, mean.clamp(-1, 1).reshape(4, 3, 2))
    alone = policy.act(obs.rows([2]), DecisionRng(np.array([2]), np.array([0])), "sample")
    torch.testing.assert_close(alone.actions[0], policy.act(obs, rng(), "sample").actions[2])


def test_a_row_that_is_not_finite_is_void_and_the_others_are_as_without_it() -> None:
    policy, obs = make(), observation()
    whole = policy.act(obs, rng(), "sample").actions
    obs.proprio[1, 0] = torch.nan
    sick = policy.act(obs, rng(), "sample").actions
    assert sick[1].isnan().all()
    assert torch.equal(sick[[0, 2, 3]], whole[[0, 2, 3]])


def normalized(*parts: Tensor, returns: Tensor | None = None) -> MLPModel:
    model = MLPModel(CONFIG)
    for part in parts:
        model.update_normalizer(part, returns)
    return model


def test_statistics_of_parts_are_those_of_the_whole() -> None:
    values = torch.from_numpy(np.random.default_rng(1).normal(5, 3, (90, 5)).astype(np.float32))
    model = normalized(values[:20], values[20:50], values[50:])
    torch.testing.assert_close(model.mean, values.double().mean(dim=0))
    torch.testing.assert_close(model.var, values.double().var(dim=0, correction=0))
    seen = model.normalised(values)
    torch.testing.assert_close(seen.mean(dim=0), torch.zeros(5), atol=1e-5, rtol=0)
    assert model.normalised(values * 1e6).abs().max() == 10


def test_new_statistics_of_returns_leave_values_as_they_are() -> None:
    model = normalized(torch.randn(8, 5, generator=torch.Generator().manual_seed(0)))
    seen = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    before = model.value(seen)
    for returns in (torch.linspace(-900, -100, 50), torch.linspace(-50, 300, 50)):
        model.update_normalizer(seen, returns)
        torch.testing.assert_close(model.value(seen), before, atol=1e-3, rtol=1e-4)
    # The network itself moved: it predicts returns at mean 0 and standard deviation 1, here of both halves together.
    mean, std = (-500 + 125) / 2, 390
    torch.testing.assert_close(model.critic(seen)[:, 0], (before - mean) / std, atol=0.1, rtol=0)


def test_nothing_but_update_normalizer_changes_statistics() -> None:
    policy, obs = make(), observation()
    before = {name: value.clone() for name, value in policy.model.named_buffers()}
    out = policy.act(obs, rng(), "sample")
    policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay)
    assert all(torch.equal(value, before[name]) for name, value in policy.model.named_buffers())


def test_a_checkpoint_brings_weights_and_statistics_back(tmp_path: Path) -> None:
    policy, obs = make(squash=True), observation()
    policy.model.update_normalizer(torch.cat([obs.proprio, obs.state], dim=1), torch.tensor([5.0, -7.0]))  # type: ignore[list-item]
    save_policy(policy, tmp_path / "p", {"command": "test"})
    loaded = load_policy(tmp_path / "p")
    assert loaded.architecture == "mlp"
    assert loaded.source_files
    loaded.with_value = True
    one, two = policy.act(obs, rng(), "sample"), loaded.act(obs, rng(), "sample")
    assert torch.equal(one.actions, two.actions)
    assert one.value is not None
    assert torch.equal(one.value, two.value)  # type: ignore[arg-type]


def test_a_damaged_or_other_checkpoint_is_refused(tmp_path: Path) -> None:
    save_policy(make(), tmp_path / "p", {})
    with pytest.raises(UserError, match="has chunk_len 3, not 1"):
        load(tmp_path / "p", MLPOptions(chunk_len=1))
    with pytest.raises(UserError, match="initial-std is for a new policy"):
        load(tmp_path / "p", MLPOptions(initial_std=0.3))
    weights = tmp_path / "p" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    with pytest.raises(UserError, match="corrupt"):
        load_policy(tmp_path / "p")


def test_options_that_make_no_network_are_refused() -> None:
    bad: list[dict[str, Any]] = [{"hidden": ()}, {"hidden": (8, 0)}, {"chunk_len": 0}, {"initial_std": -1.0}]
    for options in bad:
        with pytest.raises(UserError, match="--policy"):
            MLPConfig(**options)


@pytest.mark.parametrize("std", [0.0, 1e-3, 0.0066, 2.8, 10.0, math.nan])
def test_a_standard_deviation_that_would_be_clamped_is_refused(std: float) -> None:
    with pytest.raises(UserError, match=r"--policy.initial-std must lie in 0\.00674 to 2\.718, .* got"):
        MLPConfig(initial_std=std)


@pytest.mark.parametrize("std", [0.00674, 0.6, 2.718])
def test_a_new_policy_samples_with_the_standard_deviation_that_was_asked_for(std: float) -> None:
    policy = fresh(MLPConfig(initial_std=std), 5, 2, seed=0)
    _, log_std = policy.model.action(policy.model.normalised(torch.zeros(1, 5)))
    torch.testing.assert_close(log_std.exp(), torch.full((1, 2), std))


def test_imitation_needs_all_that_it_reads() -> None:
    obs, actions = observation(), torch.zeros(4, 3, 2)
    with pytest.raises(UserError, match="can't imitate"):
        make().sft_loss(obs.images, obs.proprio, obs.instruction, actions)
    policy = MLPPolicy.fresh(MLPModelConfig(observation_dim=2, action_dim=2, chunk_len=3), seed=0)
    loss = policy.sft_loss(obs.images, obs.proprio, obs.instruction, actions)
    assert 0 <= float(loss.detach()) < math.inf
