"""Named presets: small Python objects, composed from each other, one module a benchmark."""

from __future__ import annotations

from embodied_rl.config import TrainConfig
from embodied_rl.configs.libero import LIBERO_GRPO, LIBERO_PPO
from embodied_rl.configs.tabletop import TABLETOP_GRPO, TABLETOP_PPO

# By (benchmark, policy, algorithm). While LIBERO's assets are not installed, `train libero` takes the tabletop's.
PRESETS: dict[tuple[str, str, str], TrainConfig] = {
    ("libero", "openvla", "grpo"): LIBERO_GRPO,
    ("libero", "openvla", "ppo"): LIBERO_PPO,
    ("tabletop", "openvla", "grpo"): TABLETOP_GRPO,
    ("tabletop", "openvla", "ppo"): TABLETOP_PPO,
}
