"""embodied-rl: reinforcement learning for vision-language-action robot policies."""

__version__ = "0.1.0"
