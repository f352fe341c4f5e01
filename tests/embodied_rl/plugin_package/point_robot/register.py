"""Registers both: named by --import point_robot.register, or found as this package's entry point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import embodied_rl as erl
from embodied_rl.vec_env import EnvInfo
from point_robot.env import CORNERS, PointEnv
from point_robot.policy import LinearPolicy


@dataclass(frozen=True, kw_only=True)
class PointOptions(erl.CustomEnvConfig):
    """A point that is to reach a corner."""

    radius: float = 0.3
    """How near the corner counts as success."""


@dataclass(frozen=True, kw_only=True)
class LinearOptions(erl.CustomPolicyConfig):
    """A linear policy of the proprio."""

    std: float = 0.5
    """Standard deviation of sampled actions."""


def make_point(num_envs: int, tasks: Sequence[str], options: PointOptions) -> PointEnv:
    return PointEnv(num_envs, "point", tasks, options.radius)


def make_pictures(num_envs: int, tasks: Sequence[str]) -> PointEnv:
    """As the small OpenVLA of the package sees and acts."""
    return PointEnv(num_envs, "point_pictures", tasks, 0.3, ("top", "hand"), size=64, proprio=8, action=7)


def make_linear(info: EnvInfo, options: LinearOptions) -> LinearPolicy:
    return LinearPolicy(info, options.std)


erl.register_env("point", make_point, tasks=tuple(CORNERS), options=PointOptions)
erl.register_env("point_pictures", make_pictures, tasks=tuple(CORNERS))
erl.register_policy("linear", make_linear, options=LinearOptions)
erl.register_policy("plain", LinearPolicy)
