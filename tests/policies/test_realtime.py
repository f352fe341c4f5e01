"""Real-time chunking: the frozen prefix is reproduced, without one nothing changes, and broken variants fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.policies import realtime
from embodied_rl.policies.flow import ode_step, step_time
from embodied_rl.policies.pi0.continuing import in_network_terms
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.realtime import ChunkPrefix, Guidance, guidance_weight, guided_velocity, sample_guided
from embodied_rl.real_robot.core.executor import prefix_weights
from tests.policies import pi0_models, smolvla_models

H, D = 8, 2


class GaussianPolicy:
    """A flow policy whose data is known: smooth chunks, normal with mean 0. Its velocity is exact."""

    def __init__(self, smooth: float = 3.0) -> None:
        steps = torch.arange(H, dtype=torch.float64)
        distance = (steps[:, None] - steps) / smooth
        self.cov = torch.exp(-0.5 * distance.square()) + 0.01 * torch.eye(H, dtype=torch.float64)

    def __call__(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        t = time[:, None, None]
        eye = torch.eye(H, dtype=x.dtype)
        cov = self.cov.to(x.dtype)
        inner = torch.linalg.solve((1 - t) ** 2 * cov + t**2 * eye, x)
        return t * inner - (1 - t) * cov @ inner

    def chunks(self, rows: int, seed: int) -> torch.Tensor:
        draws = torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, H, D)))
        return torch.linalg.cholesky(self.cov) @ draws


def mask(frozen: int, horizon: int) -> torch.Tensor:
    return torch.from_numpy(prefix_weights(H, frozen, H - horizon))


def run(policy: Any, previous: torch.Tensor, weights: torch.Tensor, steps: int = 10, seed: int = 9) -> torch.Tensor:
    start = torch.from_numpy(np.random.default_rng(seed).standard_normal(tuple(previous.shape)))
    guidance = Guidance(previous, weights[None, :, None].expand(previous.shape).clone())
    return sample_guided(policy, start, steps, guidance)


def seam(chunk: torch.Tensor, previous: torch.Tensor, frozen: int) -> float:
    """RMS of the jump from the last frozen action to the first of the new chunk that acts."""
    return float((chunk[:, frozen] - previous[:, frozen - 1]).square().mean().sqrt())


@pytest.mark.parametrize("frozen", [1, 2, 3, 4])
def test_the_frozen_prefix_is_reproduced_and_the_seam_is_smooth(frozen: int) -> None:
    policy = GaussianPolicy()
    previous = policy.chunks(64, seed=frozen)
    free = run(policy, previous, torch.zeros(H))
    guided = run(policy, previous, mask(frozen, H - 2))

    def error(chunk: torch.Tensor) -> float:
        return float((chunk - previous)[:, :frozen].square().mean().sqrt())

    assert error(free) > 1.0
    assert error(guided) < 0.1
    natural = float((previous[:, frozen] - previous[:, frozen - 1]).square().mean().sqrt())
    assert seam(guided, previous, frozen) < 1.5 * natural
    assert seam(free, previous, frozen) > 2.5 * natural


def _turned(time: torch.Tensor, limit: float) -> torch.Tensor:
    return -guidance_weight(time, limit)


def _unscaled(time: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.full_like(time, 0.1)


@pytest.mark.parametrize("broken", [_turned, _unscaled])
def test_a_broken_guidance_is_noticed(broken: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "guidance_weight", broken)
    with pytest.raises(AssertionError):
        test_the_frozen_prefix_is_reproduced_and_the_seam_is_smooth(4)


def test_weights_by_hand() -> None:
    time = torch.tensor([1.0, 0.5, 0.25, 0.75], dtype=torch.float64)
    found = guidance_weight(time, 5.0)
    # tau = 0.5: r^2 = 0.5, 0.5 / (0.5 * 0.5) = 2; tau = 0.75: r^2 = 0.1, 0.25 / (0.75 * 0.1) = 10 / 3; symmetric
    torch.testing.assert_close(found, torch.tensor([5.0, 2.0, 10 / 3, 10 / 3], dtype=torch.float64))
    for tau in (0.1, 0.3, 0.9):
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        expected = min(5.0, (1 - tau) / (tau * r2))
        assert guidance_weight(torch.tensor(1 - tau, dtype=torch.float64), 5.0).item() == pytest.approx(expected)
    with pytest.raises(UserError, match="max_guidance_weight"):
        Guidance(torch.zeros(1, H, D), torch.zeros(1, H, D), float("nan"))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), t=st.floats(0.05, 1.0))
def test_the_pull_is_the_vector_jacobian_product_of_equation_2(seed: int, t: float) -> None:
    """A linear network, whose Jacobian is written down: estimate = x - t M x."""
    draw = np.random.default_rng(seed)
    matrix = torch.from_numpy(draw.standard_normal((H * D, H * D)) / 4)
    x, target = (torch.from_numpy(draw.standard_normal((1, H, D))) for _ in range(2))
    weights = torch.from_numpy(draw.random((1, H, D)))
    time = torch.tensor([t], dtype=torch.float64)

    def velocity(x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1) @ matrix.T).view(-1, H, D)

    flat = x.flatten()
    jacobian = torch.eye(H * D, dtype=torch.float64) - t * matrix
    pull = jacobian.T @ (weights.flatten() * (target.flatten() - jacobian @ flat))
    expected = matrix @ flat - min(5.0, ((1 - t) ** 2 + t**2) / max((1 - t) * t, 1e-9)) * pull
    got = guided_velocity(velocity, x, time, Guidance(target, weights))
    torch.testing.assert_close(got.flatten(), expected)
    assert not got.requires_grad


def test_without_weights_it_is_the_plain_ode() -> None:
    policy = GaussianPolicy()
    x = torch.from_numpy(np.random.default_rng(9).standard_normal((3, H, D)))
    got = run(policy, torch.ones(3, H, D, dtype=torch.float64), torch.zeros(H), steps=5)
    for index in range(5):
        time = step_time(torch.full((3,), index), 5)
        x = ode_step(x, policy(x, time), 5)
    torch.testing.assert_close(got, x, rtol=0, atol=0)


def policies() -> list[Any]:
    made = [pytest.param(pi0_models.tiny_policy(kind), pi0_models, id=kind) for kind in pi0_models.KINDS]
    relative = pi0_models.tiny_policy("pi0", delta_dims=2)
    return [
        *made,
        pytest.param(relative, pi0_models, id="relative_actions"),
        pytest.param(smolvla_models.tiny_policy(), smolvla_models, id="smolvla"),
    ]


def continued(policy: Pi0Policy, models: Any, prefix: ChunkPrefix, limit: float = 5.0) -> torch.Tensor:
    rows = len(prefix.previous)
    continue_chunk = policy.traits.continue_chunk
    assert continue_chunk is not None
    return continue_chunk(models.observation(rows), pi0_models.decision_rng(rows), prefix, limit)


@pytest.mark.parametrize(("policy", "models"), policies())
def test_networks_go_on_from_planned_actions(policy: Pi0Policy, models: Any) -> None:
    """With a delay the prefix is pulled to what is planned; without one `act` and this are the same, row by row."""
    generator = torch.Generator().manual_seed(4)
    plain = policy.act(models.observation(4), pi0_models.decision_rng(4), "greedy").actions
    previous = (plain.roll(1, 0) + 0.1 * torch.randn(plain.shape, generator=generator)).clamp(-0.5, 0.5)
    weights = torch.from_numpy(prefix_weights(3, 2, 1)).float().expand(4, 3).clone()
    weights[1] = 0.0
    got = continued(policy, models, ChunkPrefix(previous, weights))
    assert got.shape == plain.shape
    torch.testing.assert_close(got[1], plain[1], rtol=1e-4, atol=1e-5)
    rows = [0, 2, 3]
    before, after = (float((a - previous)[rows][:, :2].abs().mean()) for a in (plain, got))
    assert after < before / 2
    nothing = continued(policy, models, ChunkPrefix(previous, torch.zeros(4, 3)))
    torch.testing.assert_close(nothing, plain, rtol=1e-4, atol=1e-5)
    assert all(parameter.grad is None for parameter in policy.parameters())
    with pytest.raises(ValueError, match="a prefix is"):
        continued(policy, models, ChunkPrefix(previous[:, :2], weights))


@pytest.mark.parametrize(("policy", "models"), policies())
def test_the_target_is_in_the_networks_terms(policy: Pi0Policy, models: Any) -> None:
    """Back through what `act` does with a denoised path it is the planned actions; padding has no weight."""
    proprio = models.observation(2).proprio
    previous = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(1)) - 0.5
    target, weights = in_network_terms(policy, proprio, ChunkPrefix(previous, torch.tensor([[1.0, 0.5, 0.0]] * 2)))
    back = policy.statistics.action.unnormalise(target[:, :3, :3])
    if policy.config.delta_dims:
        back = back + policy.state_offset(proprio)
    torch.testing.assert_close(back, previous)
    assert target.shape == weights.shape == (2, policy.config.horizon, policy.config.max_action_dim)
    assert weights[:, 0, :3].eq(1).all()
    assert weights[:, 1, :3].eq(0.5).all()
    assert weights.sum() == 2 * 3 * 1.5
