"""embodied-rl: reinforcement learning for vision-language-action robot policies.

Example:
    >>> import embodied_rl as erl
    >>> env = erl.make_vec_env("tabletop_spatial", num_envs=8)
    >>> policy = erl.load_policy()
    >>> report = erl.evaluate(env, policy, episodes=50)
    >>> erl.train("tabletop_openvla_ppo", iterations=30, output="runs/mine")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from embodied_rl.utils.on_import import on_import
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from embodied_rl import configs as recipes
    from embodied_rl.api import evaluate, load_policy, make_isaacgym_env, make_vec_env, train
    from embodied_rl.config.env import CustomEnvConfig
    from embodied_rl.config.policies import CustomPolicyConfig
    from embodied_rl.config.register import register_env, register_policy
    from embodied_rl.policies.wrapped.heads import ActionTokens, AutoregressiveTokens, GaussianActions, VelocityField
    from embodied_rl.policies.wrapped.policy import wrap_policy

__all__ = [
    "ActionTokens",
    "AutoregressiveTokens",
    "CustomEnvConfig",
    "CustomPolicyConfig",
    "GaussianActions",
    "VelocityField",
    "__version__",
    "evaluate",
    "load_policy",
    "make_isaacgym_env",
    "make_vec_env",
    "recipes",
    "register_env",
    "register_policy",
    "train",
    "wrap_policy",
]
_ELSEWHERE = {
    "ActionTokens": "embodied_rl.policies.wrapped.heads",
    "AutoregressiveTokens": "embodied_rl.policies.wrapped.heads",
    "CustomEnvConfig": "embodied_rl.config.env",
    "CustomPolicyConfig": "embodied_rl.config.policies",
    "GaussianActions": "embodied_rl.policies.wrapped.heads",
    "VelocityField": "embodied_rl.policies.wrapped.heads",
    "register_env": "embodied_rl.config.register",
    "register_policy": "embodied_rl.config.register",
    "wrap_policy": "embodied_rl.policies.wrapped.policy",
}
"""Where a name is that is not in `embodied_rl.api`."""


# Lets `gymnasium.make("embodied_rl/tabletop_spatial-v0")` find our suites.
on_import("gymnasium", "embodied_rl.factory.gymnasium_ids", "register")


def __getattr__(name: str) -> Any:
    """Import what is asked for only now: `import embodied_rl` loads neither torch nor a simulator."""
    if name == "recipes":
        return importlib.import_module("embodied_rl.configs")
    if name not in __all__:
        raise AttributeError(f"module 'embodied_rl' has no attribute '{name}'")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "embodied_rl.api")), name)


def __dir__() -> list[str]:
    return __all__
