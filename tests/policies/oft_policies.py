"""Tiny OpenVLA-OFT policies with every parameter random, and observations for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla_oft.config import OFTModelConfig, oft
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.policies.preprocessing.tokens import Statistics
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation

INSTRUCTIONS = ["turn on the stove", "pick up the black bowl and place it on the plate", "open it"]
PUBLISHED = {"learned_positions": False, "ordinal_init": False, "proprio_norm": "bounds"}


def config(film: bool = False, **changes: Any) -> OFTModelConfig:
    """32 pixels, 4 patches a camera, width 64, 2 steps of 7 dimensions."""
    base = nano(image_size=32, vision_dim=32, dim=64, mlp_dim=96, text_vocab=64, chunk_len=2)
    if film:
        changes |= {name: replace(getattr(base, name), film_dim=64) for name in ("featurizer", "fused_featurizer")}
    return oft(base, **changes)


def statistics() -> Statistics:
    """Ranges that are not symmetric, so that a swapped or skipped step shows."""
    low = np.array([-0.9, -0.8, -0.7, -1.0, -1.0, -0.5, 0.0], np.float32)
    high = np.array([0.8, 0.9, 0.6, 1.0, 0.7, 0.5, 1.0], np.float32)
    bounds = np.linspace(-2, -1, 8, dtype=np.float32), np.linspace(1, 3, 8, dtype=np.float32)
    mask, zeros = np.array([True] * 6 + [False]), np.zeros(8, np.float32)
    return Statistics(low, high, mask, zeros, np.ones(8, np.float32), bounds)


def policy(film: bool = False, **changes: Any) -> OpenVLAOFTPolicy:
    """A policy whose every parameter is random, also those that start at zero or one."""
    made = OpenVLAOFTPolicy.fresh(config(film, **changes), INSTRUCTIONS, statistics(), seed=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    made.with_value = True
    return made


def observation(rows: int, of: OpenVLAOFTPolicy, seed: int = 0) -> Observation:
    """Rows with prompts of three lengths."""
    generator, size = np.random.default_rng(seed), of.config.image_size
    images = generator.integers(0, 256, (rows, of.config.num_cameras, size, size, 3), dtype=np.uint8)
    proprio = generator.standard_normal((rows, of.config.proprio_dim)).astype(np.float32)
    return Observation.from_numpy(images, proprio, [INSTRUCTIONS[row % 3] for row in range(rows)])


def rng(rows: int, decision: int = 0) -> DecisionRng:
    """The random numbers of episodes 0, 1, ..."""
    return DecisionRng(np.arange(rows), np.full(rows, decision))
