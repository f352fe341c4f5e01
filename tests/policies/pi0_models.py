"""Very small pi0 and pi0.5 policies with weights that all matter, and observations for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.config import Pi0ModelConfig, as_pi05, gemma, siglip
from embodied_rl.policies.pi0.normalise import Normaliser, Pi0Statistics
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Array, Observation

INSTRUCTIONS = ["open the drawer", "put the mug on the plate", "close it"]
KINDS = ("pi0", "pi05", "pi05_no_state")


def tiny_config(kind: str = "pi0", **changes: Any) -> Pi0ModelConfig:
    """Published architecture, sizes of a few: the horizon is longer than a chunk and actions are padded."""
    config = Pi0ModelConfig(
        vision=siglip(28, 14, 16, 2, 2, 24),
        decoder=gemma(320, 24, 3, 4, 8, 40),
        expert=gemma(0, 16, 3, 4, 8, 20),
        horizon=5,
        chunk_len=3,
        max_action_dim=4,
        max_state_dim=5,
        action_dim=3,
        proprio_dim=2,
        num_cameras=2,
        expert_head_rows=6,
        value_hidden=(8, 4),
        noise_hidden=(8, 4),
    )
    if kind != "pi0":
        config = as_pi05(config, "prompt" if kind == "pi05" else "none")
    return replace(config, **changes)


def statistics() -> Pi0Statistics:
    """Two modes, none of them the identity."""

    def array(*values: float) -> Array:
        return np.array(values, np.float32)

    state = {"mean": array(0.2, -0.1), "std": array(0.5, 2.0), "q01": array(-1.0, -2.0), "q99": array(1.0, 3.0)}
    action = {
        "mean": array(0.0, 0.1, 0.2),
        "std": array(0.3, 0.2, 0.1),
        "q01": array(-0.6, -0.8, -1.0),
        "q99": array(0.6, 0.9, 1.0),
    }
    return Pi0Statistics(Normaliser("mean_std", state), Normaliser("quantiles", action))


def randomise(module: torch.nn.Module, seed: int, scale: float = 0.1) -> None:
    """Give every parameter, also those that start at zero or one, a value that matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


def tiny_policy(kind: str = "pi0", flow: FlowSettings | None = None, seed: int = 0, **changes: Any) -> Pi0Policy:
    """A policy of `tiny_config` with random weights."""
    flow = flow or FlowSettings(num_inference_steps=4)
    policy = Pi0Policy.fresh(tiny_config(kind, **changes), INSTRUCTIONS, statistics(), flow, seed=seed)
    randomise(policy, seed)
    return policy


def observation(rows: int, seed: int = 0) -> Observation:
    """Random images and states; instructions of different lengths."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (rows, 2, 28, 28, 3), dtype=np.uint8)
    proprio = draw.normal(size=(rows, 2)).astype(np.float32)
    return Observation.from_numpy(images, proprio, [INSTRUCTIONS[row % 3] for row in range(rows)])


def tensors(obs: Observation) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """An observation as `evaluate` and `sft_loss` take it."""
    return obs.images, obs.proprio, obs.instruction


def decision_rng(rows: int) -> DecisionRng:
    return DecisionRng(np.arange(rows) + 7, np.arange(rows))
