"""Named presets: small Python objects, composed from each other, one module a benchmark."""

from __future__ import annotations

from embodied_rl.config.train import TrainConfig
from embodied_rl.configs.libero import (
    LIBERO_GRPO,
    LIBERO_OFT_GRPO,
    LIBERO_OFT_PPO,
    LIBERO_PI0_GRPO,
    LIBERO_PI0_PPO,
    LIBERO_PPO,
    LIBERO_SMOLVLA_GRPO,
    LIBERO_SMOLVLA_PPO,
)
from embodied_rl.configs.tabletop import TABLETOP_GRPO, TABLETOP_PPO
from embodied_rl.configs.tabletop_chunks import OFT_GRPO, OFT_PPO, PI0_GRPO, PI0_PPO, SMOLVLA_GRPO, SMOLVLA_PPO

# By (benchmark, policy, algorithm). While LIBERO's assets are not installed, `train libero` takes the tabletop's.
PRESETS: dict[tuple[str, str, str], TrainConfig] = {
    ("libero", "openvla", "grpo"): LIBERO_GRPO,
    ("libero", "openvla", "ppo"): LIBERO_PPO,
    ("tabletop", "openvla", "grpo"): TABLETOP_GRPO,
    ("tabletop", "openvla", "ppo"): TABLETOP_PPO,
    ("libero", "openvla_oft", "grpo"): LIBERO_OFT_GRPO,
    ("libero", "openvla_oft", "ppo"): LIBERO_OFT_PPO,
    ("tabletop", "openvla_oft", "grpo"): OFT_GRPO,
    ("tabletop", "openvla_oft", "ppo"): OFT_PPO,
    ("libero", "pi0", "grpo"): LIBERO_PI0_GRPO,
    ("libero", "pi0", "ppo"): LIBERO_PI0_PPO,
    ("tabletop", "pi0", "grpo"): PI0_GRPO,
    ("tabletop", "pi0", "ppo"): PI0_PPO,
    ("libero", "smolvla", "grpo"): LIBERO_SMOLVLA_GRPO,
    ("libero", "smolvla", "ppo"): LIBERO_SMOLVLA_PPO,
    ("tabletop", "smolvla", "grpo"): SMOLVLA_GRPO,
    ("tabletop", "smolvla", "ppo"): SMOLVLA_PPO,
}
