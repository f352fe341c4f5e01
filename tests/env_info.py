"""The `EnvInfo` of small made-up envs."""

from __future__ import annotations

from typing import Any

from embodied_rl.vec_env import EnvInfo


def env_info(suite: str, action_dim: int, **changes: Any) -> EnvInfo:
    """One camera of 2 x 2 pixels and one proprio number, but for `changes`."""
    given: dict[str, Any] = {
        "backend": "test",
        "suite": suite,
        "simulator": f"{suite} 1",
        "renderer": "none",
        "cameras": ("front",),
        "image_shape": (2, 2),
        "proprio_dim": 1,
        "action_dim": action_dim,
        "action_low": (-1.0,) * action_dim,
        "action_high": (1.0,) * action_dim,
        "control_hz": 20.0,
        "max_episode_steps": 100,
    }
    return EnvInfo(**{**given, **changes})
