"""Flow sampling: steps against their formulas, densities against torch and numerical integration, marginals kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal

from embodied_rl.errors import UserError
from embodied_rl.policies.flow import (
    DenoiseStep,
    FlowSettings,
    Path,
    PathNoise,
    Transition,
    draw_noise,
    learned_std,
    log_density,
    normal_entropy,
    ode_step,
    sample_path,
    sde_step,
    step_time,
    training_inputs,
)
from embodied_rl.rng import DecisionRng

unit = st.floats(-3.0, 3.0)


@given(x=unit, velocity=unit, steps=st.integers(2, 12), data=st.data(), level=st.floats(0.1, 1.5))
@settings(max_examples=60)
def test_sde_step_is_the_papers(x: float, velocity: float, steps: int, data: st.DataObject, level: float) -> None:
    """x0 (1 - t + delta) + x1 (t - delta - sigma^2 delta / (2 t)), with scalars, in the paper's terms."""
    step = data.draw(st.integers(0, steps - 1))
    flow = FlowSettings(num_inference_steps=steps, noise_level=level)
    time, delta = 1 - step / steps, 1 / steps
    sigma = level * math.sqrt(time / (1 - (1 - delta if step == 0 else time)))
    clean, noise = x - velocity * time, x + velocity * (1 - time)
    wanted = clean * (1 - time + delta) + noise * (time - delta - sigma**2 * delta / (2 * time))
    point, speed = torch.full((1, 1, 1), x), torch.full((1, 1, 1), velocity)
    mean, std = sde_step(point, speed, step_time(torch.tensor([step]), steps), flow)
    assert mean.item() == pytest.approx(wanted, abs=2e-5 * (1 + level**2 * 4))
    assert std.item() == pytest.approx(sigma * math.sqrt(delta), rel=1e-4)
    straight = clean * (1 - time + delta) + noise * (time - delta)
    assert ode_step(point, speed, steps).item() == pytest.approx(straight, abs=2e-5)


def test_densities_and_entropies_are_torchs() -> None:
    x, mean, std = torch.randn(4, 5), torch.randn(4, 5), torch.rand(4, 5) + 0.05
    torch.testing.assert_close(log_density(x, mean, std), Normal(mean, std).log_prob(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(normal_entropy(std), Normal(mean, std).entropy(), rtol=1e-5, atol=1e-5)


def test_learned_std_fills_its_range_evenly_in_the_logarithm() -> None:
    flow = FlowSettings(exploration="flow_noise", noise_range=(0.08, 0.32))
    std = learned_std(torch.tensor([-50.0, 0.0, 50.0]), flow)
    torch.testing.assert_close(std, torch.tensor([0.08, 0.16, 0.32]))


def _gaussian_velocity(x: Tensor, time: Tensor, centre: float, width: float) -> Tensor:
    """The exact velocity when actions are Normal(centre, width): E[noise - action | x_t]."""
    time = time[..., None, None]
    total = time.square() + (1 - time).square() * width**2
    surprise = x - (1 - time) * centre
    return time / total * surprise - (centre + (1 - time) * width**2 / total * surprise)


@pytest.mark.parametrize("level", [0.5, 1.0])
def test_flow_sde_keeps_the_marginals_of_the_ode(level: float) -> None:
    """Every step stochastic, exact velocity, small steps: mean and deviation follow the data's interpolation."""
    flow, centre, width = FlowSettings(num_inference_steps=500, noise_level=level), 0.7, 0.3
    mean, var = 0.0, 1.0
    for step in range(flow.num_inference_steps):
        time = step_time(torch.tensor([step]), flow.num_inference_steps)
        low, std = sde_step(
            torch.zeros(1, 1, 1, dtype=torch.float64),
            _gaussian_velocity(torch.zeros(1, 1, 1), time, centre, width).double(),
            time.double(),
            flow,
        )
        one = torch.ones(1, 1, 1, dtype=torch.float64)
        high, _ = sde_step(one, _gaussian_velocity(one.float(), time, centre, width).double(), time.double(), flow)
        slope = (high - low).item()  # the step is affine in x
        mean, var = low.item() + slope * mean, slope**2 * var + std.item() ** 2
    assert mean == pytest.approx(centre, abs=0.01)
    assert math.sqrt(var) == pytest.approx(width, rel=0.03)


def _toy_step(flow: FlowSettings) -> DenoiseStep:
    """A nonlinear one-dimensional network."""

    def step(x: Tensor, index: Tensor) -> Transition:
        time = step_time(index, flow.num_inference_steps)
        velocity = 1.5 * torch.sin(2 * x) + time[..., None, None] - 0.3
        ode = ode_step(x, velocity, flow.num_inference_steps)
        if flow.exploration == "flow_sde":
            mean, std = sde_step(x, velocity, time, flow)
        else:
            mean, std = ode, learned_std(3 * x, flow)
        return Transition(mean, std, ode, x[..., 0])

    return step


def _paths(flow: FlowSettings, rows: int, *, explore: bool = True, start: float | None = None) -> Path:
    rng = DecisionRng(np.arange(rows), np.zeros(rows, dtype=np.int64))
    noise = draw_noise(rng, flow, 1, 1, torch.device("cpu"))
    if start is not None:
        noise = PathNoise(torch.full_like(noise.start, start), noise.steps, noise.chosen)
    return sample_path(_toy_step(flow), noise, flow, explore=explore)


def _joint(flow: FlowSettings, points: Tensor) -> Tensor:
    """Joint density of paths [N,M+1] of all steps, recomputed as `evaluate` does: in one call."""
    x = points[..., None, None]
    out = _toy_step(flow)(x[:, :-1], torch.arange(flow.num_inference_steps).expand(len(x), -1))
    return log_density(x[:, 1:], out.mean, out.std).sum(dim=(1, 2, 3)).exp()


def test_flow_noise_density_integrates_to_one_and_predicts_the_samples() -> None:
    """Three steps from one start, over a grid of the intermediate points: the whole, and how actions are distributed.

    The third point's marginal comes from integrating the exact joint density; samples must fall accordingly.
    """
    flow = FlowSettings(exploration="flow_noise", num_inference_steps=3, noise_range=(0.1, 0.3))
    start = 0.4
    grid = torch.linspace(-2.5, 2.5, 121)
    cell = (grid[1] - grid[0]).item()
    a, b, c = torch.meshgrid(grid, grid, grid, indexing="ij")
    points = torch.stack([torch.full_like(a, start), a, b, c], dim=-1).reshape(-1, 4)
    density = torch.cat([_joint(flow, part) for part in points.split(100_000)]).view(121, 121, 121) * cell**3
    assert density.sum().item() == pytest.approx(1.0, abs=2e-3)
    marginal = density.sum(dim=(0, 1))
    path = _paths(flow, 4000, start=start)
    actions = path.action.flatten()
    mean = (marginal * grid).sum().item()
    std = math.sqrt((marginal * (grid - mean).square()).sum().item())
    assert actions.mean().item() == pytest.approx(mean, abs=4 * std / math.sqrt(4000))
    assert actions.std().item() == pytest.approx(std, rel=0.05)
    below = (actions < mean).float().mean().item()
    assert below == pytest.approx(marginal[grid < mean].sum().item(), abs=0.04)
    torch.testing.assert_close(path.log_prob.sum(dim=(1, 2, 3)).exp(), _joint(flow, path.points[..., 0, 0]))


def test_flow_sde_density_is_that_of_its_one_random_step() -> None:
    flow = FlowSettings(num_inference_steps=4)
    path = _paths(flow, 300)
    assert path.points.shape == (300, 2, 1, 1)
    out = _toy_step(flow)(path.points[:, :1], path.step)
    wanted = Normal(out.mean, out.std).log_prob(path.points[:, 1:])
    torch.testing.assert_close(path.log_prob, wanted, rtol=1e-5, atol=1e-5)
    score = ((path.points[:, 1:] - out.mean) / out.std).flatten()
    assert abs(score.mean().item()) < 0.2
    assert score.std().item() == pytest.approx(1.0, abs=0.15)
    # before and after the random step the path is the ODE's
    for row in range(20):
        step = int(path.step[row])
        noise = draw_noise(DecisionRng(np.array([row]), np.zeros(1, dtype=np.int64)), flow, 1, 1, torch.device("cpu"))
        x = noise.start[:, None]
        for index in range(4):
            if index == step:
                torch.testing.assert_close(x, path.points[row : row + 1, :1], rtol=0, atol=1e-6)
                x = path.points[row : row + 1, 1:]
            else:
                x = _toy_step(flow)(x, torch.tensor([[index]])).ode
        torch.testing.assert_close(x[:, 0], path.action[row : row + 1], rtol=0, atol=1e-6)


def test_each_sample_draws_its_own_random_step() -> None:
    counts = torch.bincount(_paths(FlowSettings(num_inference_steps=4), 800).step.flatten(), minlength=4)
    assert counts.min() > 150


@pytest.mark.parametrize("method", ["flow_sde", "flow_noise"])
def test_without_exploring_only_the_start_is_random(method: str) -> None:
    flow = FlowSettings(exploration=method, num_inference_steps=4)  # type: ignore[arg-type]
    calm, wild = (_paths(flow, 50, explore=explore, start=0.3) for explore in (False, True))
    assert calm.action.std() == 0
    assert wild.action.std() > 0.01
    assert torch.isfinite(calm.log_prob).all()
    assert (calm.log_prob.sum(dim=1) >= wild.log_prob.sum(dim=1)).float().mean() > 0.7


def test_training_inputs_follow_the_published_time_distribution() -> None:
    uniform = (torch.arange(20_000) + 0.5).view(1, -1) / 20_000
    actions, normal = torch.ones(1, 1, 1), torch.randn(1, 20_000, 1, 1)
    x, time, target = training_inputs(actions, normal, uniform)
    ours = ((time - 0.001) / 0.999).flatten()
    beta = torch.distributions.Beta(torch.tensor(1.5), torch.tensor(1.0))
    assert ours.mean().item() == pytest.approx(beta.mean.item(), abs=1e-3)
    assert ours.var().item() == pytest.approx(beta.variance.item(), abs=1e-3)
    blend = time[..., None, None]
    torch.testing.assert_close(x, blend * normal + (1 - blend))
    torch.testing.assert_close(target, normal - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_inference_steps": 1},
        {"exploration": "flow_ode"},
        {"noise_level": 0.0},
        {"noise_range": (0.2, 0.1)},
        {"noise_range": (0.0, 0.1)},
        {"loss_samples": 0},
        {"exploration": "flow_noise", "num_inference_steps": 0},
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        FlowSettings(**changes)
