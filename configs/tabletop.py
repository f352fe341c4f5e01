"""The small OpenVLA on the built-in tabletop suites, sized for two CPU cores."""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config import TrainConfig

TABLETOP_GRPO = TrainConfig(algorithm=GRPOConfig())
TABLETOP_PPO = replace(TABLETOP_GRPO, algorithm=PPOConfig())
