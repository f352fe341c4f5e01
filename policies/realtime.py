"""Real-time chunking: a flow policy denoises a chunk that goes on where the one being executed will be.

K. Black, M. Galliker, S. Levine, "Real-Time Execution of Action Chunking Flow Policies" (2025). Their time tau runs
from noise to action, ours (see `flow`) the other way, t = 1 - tau, and their velocity is minus ours. Shapes as in
`flow`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.flow import ode_step, step_time

MAX_GUIDANCE_WEIGHT = 5.0
"""Clip of the guidance weight, beta: the paper's value."""
Velocity = Callable[[Tensor, Tensor], Tensor]
"""(x [N,H,D], time [N]) -> velocity [N,H,D] at x, differentiable in x."""


class ChunkPrefix(NamedTuple):
    """What a chunk must go on from, in actions as `VecEnv.step` takes them.

    previous: float32 [N,K,A], planned actions from the observation's step on. weights: float32 [N,K] in [0, 1], how
    strongly each of them holds (equation 5, `real_robot.core.executor.prefix_weights`); rows of zeros are free.
    """

    previous: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Guidance:
    """The same in the network's terms. target: [N,H,D], normalised. weights: [N,H,D], zero in padding."""

    target: Tensor
    weights: Tensor
    limit: float = MAX_GUIDANCE_WEIGHT

    def __post_init__(self) -> None:
        if not 0 < self.limit < float("inf"):
            raise UserError(f"max_guidance_weight must be a finite number above 0, got {self.limit}")


def guidance_weight(time: Tensor, limit: float) -> Tensor:
    """min(beta, (1 - tau) / (tau r^2)), r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2) (equations 2 and 4); time [...]."""
    done = 1.0 - time
    free = (done.square() + time.square()) / (time * done).clamp_min(1e-9)
    return free.clamp(max=limit)


def guided_velocity(velocity: Velocity, x: Tensor, time: Tensor, guidance: Guidance) -> Tensor:
    """The velocity that also leads to the target (equations 2 and 3).

    The estimate of the action is x - t v; its weighted distance from the target is pulled back through the network (a
    vector-Jacobian product).
    """
    with torch.enable_grad():
        start = x.detach().requires_grad_(True)
        v = velocity(start, time)
        estimate = start - time[:, None, None] * v
        distance = (guidance.target - estimate).detach() * guidance.weights
        (pull,) = torch.autograd.grad(estimate, start, distance)
    return v.detach() - guidance_weight(time, guidance.limit)[:, None, None] * pull


def sample_guided(velocity: Velocity, start: Tensor, steps: int, guidance: Guidance) -> Tensor:
    """Denoise from `start` [N,H,D] along the guided ODE in `steps` equal steps: actions [N,H,D], normalised."""
    x = start
    for index in range(steps):
        time = step_time(torch.full((len(x),), index, device=x.device), steps)
        x = ode_step(x, guided_velocity(velocity, x, time, guidance), steps)
    return x
