"""From an algorithm's options to the algorithm."""

from __future__ import annotations

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.algorithms.config import AlgorithmConfig, ImitateConfig, PPOConfig
from embodied_rl.algorithms.grpo import GRPO
from embodied_rl.algorithms.ppo import PPO


def make_algorithm(config: AlgorithmConfig) -> OnPolicyAlgorithm:
    """PPO for a PPOConfig, GRPO for a GRPOConfig."""
    assert not isinstance(config, ImitateConfig), "it has no use for rewards"
    return PPO(config) if isinstance(config, PPOConfig) else GRPO(config)
