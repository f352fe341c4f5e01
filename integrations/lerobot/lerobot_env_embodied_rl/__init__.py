"""LeRobot imports this package as it starts: `--env.type=embodied_rl` is known from then on."""

from lerobot_env_embodied_rl.config import EmbodiedRLEnv

__all__ = ["EmbodiedRLEnv"]
