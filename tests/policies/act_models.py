"""Small ACT policies for the tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from embodied_rl.policies.act.config import ACTModelConfig
from embodied_rl.policies.act.policy import ACTPolicy
from embodied_rl.policies.pi0.normalise import Normaliser, Pi0Statistics, Robot
from embodied_rl.types import Observation

TINY = ACTModelConfig(
    frame=(24, 32),
    horizon=5,
    chunk_len=3,
    action_dim=3,
    proprio_dim=4,
    backbone_blocks=(1, 1),
    backbone_width=4,
    dim=16,
    heads=2,
    mlp_dim=24,
    encoder_layers=2,
    latent_dim=6,
    vae_layers=1,
    value_hidden=(16, 8),
    clip_actions=False,
)


def statistics(actions: int, states: int, seed: int = 0) -> Pi0Statistics:
    """Of a made-up data set."""
    draw = np.random.default_rng(seed)

    def one(dim: int) -> Normaliser:
        mean, std = draw.normal(size=dim), draw.uniform(0.2, 0.8, dim)
        stats = {"mean": mean, "std": std}
        return Normaliser("mean_std", {name: values.astype(np.float32) for name, values in stats.items()}, 1e-8)

    return Pi0Statistics(one(states), one(actions))


def tiny_policy(seed: int = 0, **changes: object) -> ACTPolicy:
    """A very small one; actions of some size, so that what changes them is seen."""
    config = replace(TINY, **changes)  # type: ignore[arg-type]
    robots = {"mine": Robot(statistics(config.action_dim, config.proprio_dim))}
    policy = ACTPolicy.fresh(config, robots, seed=seed, unnorm_key="mine")
    with torch.no_grad():
        policy.model.log_std.add_(torch.linspace(-1, 1, policy.model.log_std.numel()).view_as(policy.model.log_std))
    return policy


def published_policy() -> ACTPolicy:
    """A narrow transformer on a ResNet-18, as LeRobot's files can say it."""
    cameras = {"image_mean": (0.125, 0.25, 0.375, 0.5, 0.625, 0.75), "image_std": (0.5, 0.25, 0.375, 0.75, 1.0, 0.625)}
    return tiny_policy(3, backbone_blocks=(2, 2, 2, 2), backbone_width=64, frame=(32, 40), **cameras)


def observation(rows: int, config: ACTModelConfig = TINY) -> Observation:
    """Random pictures and states."""
    draw, size = np.random.default_rng(5), config.image_size
    images = draw.integers(0, 256, (rows, config.num_cameras, size, size, 3), dtype=np.uint8)
    proprio = draw.normal(size=(rows, config.proprio_dim)).astype(np.float32)
    return Observation.from_numpy(images, proprio, ["do it"] * rows)
