"""Flow-matching policies as stochastic ones: the denoising path is the random choice, and its density is exact.

Time t runs from 1 (noise) to 0 (action) in K equal steps of delta = 1 / K; a network predicts v = noise - action at
x_t = t noise + (1 - t) action (Lipman et al. 2023; Black et al. 2024, pi0). The plain sampler follows the ODE,
x - delta v. Two ways to make it explore (Chen et al. 2025, pi_RL):
    Flow-SDE    one step, drawn for each sample, follows the stochastic equation with the same marginals; the others
                follow the ODE. The density is that step's.
    Flow-Noise  every step adds noise of a learned size. The density is that of all steps together.
Shapes: N rows, M recorded steps, H horizon, D padded action dimensions. Everything is float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.rng import DecisionRng, FixedSeed, philox

FlowExploration = Literal["flow_sde", "flow_noise"]
_LOG_2PI = math.log(2.0 * math.pi)
# Training times are Beta(1.5, 1) * 0.999 + 0.001 (Black et al. 2024, appendix B): more weight on noisy inputs.
_BETA, _TIME_SCALE, _TIME_OFFSET = 1.5, 0.999, 0.001


@dataclass(frozen=True)
class FlowSettings:
    """How a flow policy samples and imitates; stored with its checkpoint."""

    exploration: FlowExploration = "flow_sde"
    """How sampled actions explore; greedy ones always follow the ODE."""
    num_inference_steps: int = 10
    """Denoising steps a decision (K)."""
    noise_level: float = 0.5
    """Size of the noise of Flow-SDE (a)."""
    noise_range: tuple[float, float] = (0.08, 0.16)
    """Smallest and largest standard deviation of a step of Flow-Noise, in normalised action units."""
    loss_samples: int = 1
    """Noise draws a demonstration in the imitation loss; all of them share its images and prompt."""

    def __post_init__(self) -> None:
        low, high = self.noise_range
        if self.exploration not in ("flow_sde", "flow_noise"):
            raise UserError(f"unknown flow method '{self.exploration}': use flow_sde or flow_noise")
        if self.num_inference_steps < (2 if self.exploration == "flow_sde" else 1):
            raise UserError(f"{self.num_inference_steps} denoising steps are too few: use 2 or more (4 for training)")
        if self.loss_samples < 1 or self.noise_level <= 0 or not 0 < low <= high:
            raise UserError(f"loss_samples, noise_level and noise_range must be positive, the range ordered: {self}")

    @property
    def recorded_steps(self) -> int:
        """Steps of a path that count in its density (M)."""
        return 1 if self.exploration == "flow_sde" else self.num_inference_steps


class Transition(NamedTuple):
    """One denoising step of a batch: x_next ~ Normal(mean, std), and where the ODE would go.

    mean, std, ode: float32 [N,M,H,D]. summary: [N,M,W], what the network knew then, for a critic.
    """

    mean: Tensor
    std: Tensor
    ode: Tensor
    summary: Tensor


DenoiseStep = Callable[[Tensor, Tensor], Transition]
"""(x [N,M,H,D], step int64 [N,M] in 0..K-1) -> Transition, for the observations that the callable was made for."""


@dataclass(frozen=True, slots=True)
class Path:
    """A sampled path. action: [N,H,D]. points: [N,M+1,H,D], consecutive; step: int64 [N,M], where each step began.

    log_prob: [N,M,H,D] of each recorded step. summary: [N,M,W], see `Transition`.
    """

    action: Tensor
    points: Tensor
    step: Tensor
    log_prob: Tensor
    summary: Tensor


@dataclass(frozen=True, slots=True)
class PathNoise:
    """The random numbers of N paths: `start` [N,H,D]; `steps` [N,M,H,D]; `chosen` int64 [N], Flow-SDE's step."""

    start: Tensor
    steps: Tensor
    chosen: Tensor


def draw_noise(rng: DecisionRng, settings: FlowSettings, horizon: int, dim: int, device: torch.device) -> PathNoise:
    """Everything random about the paths of one decision; row i depends on row i of `rng` alone."""
    recorded = settings.recorded_steps
    normal = torch.from_numpy(rng.normal((recorded + 1) * horizon * dim)).to(device)
    normal = normal.view(len(normal), recorded + 1, horizon, dim)
    uniform = torch.from_numpy(rng.uniform(1)[:, 0]).to(device)
    chosen = (uniform * settings.num_inference_steps).long().clamp_(max=settings.num_inference_steps - 1)
    return PathNoise(normal[:, 0], normal[:, 1:], chosen)


def step_time(step: Tensor, steps: int) -> Tensor:
    """Time float32 at which each step (int64, 0..steps-1) begins."""
    times = [1.0 + index * (-1.0 / steps) for index in range(steps)]
    return torch.tensor(times, dtype=torch.float32, device=step.device)[step]


def ode_step(x: Tensor, velocity: Tensor, steps: int) -> Tensor:
    """Euler's step of dx = v dt over -1/steps."""
    return x + (-1.0 / steps) * velocity


def sde_step(x: Tensor, velocity: Tensor, time: Tensor, settings: FlowSettings) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of Flow-SDE's step; x, velocity [...,H,D], time [...].

    sigma = a sqrt(t / (1 - t)), at t = 1 with the next step's 1 - t; noise estimate x1 = x + (1 - t) v; mean = ODE step
    - sigma^2 delta / (2 t) x1; std = sigma sqrt(delta) (pi_RL, section 4).
    """
    delta = 1.0 / settings.num_inference_steps
    time = time[..., None, None]
    sigma2 = settings.noise_level**2 * time / (1.0 - time).clamp_min(delta)
    noise = x + (1.0 - time) * velocity
    mean = ode_step(x, velocity, settings.num_inference_steps) - sigma2 * delta / (2.0 * time) * noise
    return mean, (sigma2 * delta).sqrt().expand_as(mean)


def learned_std(raw: Tensor, settings: FlowSettings) -> Tensor:
    """Flow-Noise's standard deviation from a network's output: its logarithm runs between those of the range."""
    low, high = (math.log(bound) for bound in settings.noise_range)
    return (low + (high - low) * 0.5 * (1.0 + raw.float().tanh())).exp()


def log_density(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of independent normal variables, element by element."""
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * _LOG_2PI


def normal_entropy(std: Tensor) -> Tensor:
    """Entropy of independent normal variables, element by element."""
    return 0.5 * (1.0 + _LOG_2PI) + std.log()


def sample_path(step: DenoiseStep, noise: PathNoise, settings: FlowSettings, *, explore: bool) -> Path:
    """Denoise from `noise.start`; without `explore` along the ODE, though densities stay those of exploring."""
    count, x = settings.num_inference_steps, noise.start
    rows = torch.arange(len(x), device=x.device)
    every = settings.exploration == "flow_noise"
    points, densities, summaries = [x], [], []
    for index in range(count):
        out = Transition(*(part[:, 0] for part in step(x[:, None], torch.full_like(rows, index)[:, None])))
        random = explore & (every | (noise.chosen == index))
        drawn = out.mean + out.std * noise.steps[:, index if every else 0]
        x = torch.where(random[:, None, None], drawn, out.ode)
        points.append(x)
        densities.append(log_density(x, out.mean, out.std))
        summaries.append(out.summary)
    begins = torch.arange(count, device=x.device).expand(len(x), -1) if every else noise.chosen[:, None]
    ends = torch.cat([begins, begins[:, -1:] + 1], dim=1)
    at, to = (rows[:, None], begins), (rows[:, None], ends)
    recorded = (torch.stack(parts, dim=1)[at] for parts in (densities, summaries))
    return Path(x, torch.stack(points, dim=1)[to], begins, *recorded)


def training_inputs(actions: Tensor, normal: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_t [N,M,H,D], t [N,M] and the target velocity, from actions [N,H,D], normal [N,M,H,D] and uniform [N,M]."""
    time = uniform.pow(1.0 / _BETA) * _TIME_SCALE + _TIME_OFFSET  # the inverse of Beta(a, 1)'s distribution
    blend = time[..., None, None]
    return blend * normal + (1.0 - blend) * actions[:, None], time, normal - actions[:, None]


def loss_noise(calls: Tensor | None, shape: tuple[int, ...], rng: DecisionRng | None = None) -> tuple[Tensor, Tensor]:
    """Normal [N,M,H,D] (`shape`) and uniform [N,M] numbers for `training_inputs`, on the CPU.

    rng: of the N rows; None: `calls`, int64 [], counts the calls and is raised by one, so that each has numbers of its
    own, or is None, and they are always the same.
    """
    if rng is not None:
        normal = torch.from_numpy(rng.normal(math.prod(shape[1:]))).reshape(shape)
        return normal, torch.from_numpy(rng.uniform(shape[1]))
    if calls is None:
        generator = philox(FixedSeed.PI0_VALIDATION)
    else:
        generator = philox(FixedSeed.PI0_LOSS, int(calls))
        calls += 1
    normal = torch.from_numpy(generator.standard_normal(shape, dtype="float32"))
    return normal, torch.from_numpy(generator.random(shape[:2], dtype="float32"))
