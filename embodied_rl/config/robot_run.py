"""What the configuration of a run on an arm (`--robot`) is unless told otherwise."""

from __future__ import annotations

import dataclasses

from embodied_rl.config.env import CustomEnvConfig, resized
from embodied_rl.config.robot import SUITE, is_real
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError

_EVALUATED = 10
"""Held-out states of each task unless told: each takes an arm's time, before and after training."""


def on_robot(config: TrainConfig, robot: str, suite: str | None) -> TrainConfig:
    """`config` with what an arm is unless told otherwise: one env, no videos, few evaluations.

    Raises:
        UserError: `suite` was asked for, of a real arm.
    """
    if is_real(robot) and suite is not None:
        raise UserError(
            f"--suite {suite}: a real arm's tasks are of no suite; --task says in words what is to be done."
        )
    return dataclasses.replace(
        config,
        env=resized(config.env, 1),
        tasks=() if is_real(robot) else config.tasks,
        videos=0,
        train_states="train",
        evaluation=dataclasses.replace(config.evaluation, states_per_task=_EVALUATED),
    )


def as_real_arm(config: TrainConfig) -> TrainConfig:
    """The config of a run on a real arm, whose tasks are words and belong to no suite."""
    if not is_real(config.robot) or type(config.env) is CustomEnvConfig:
        return config
    return dataclasses.replace(config, suite=SUITE, env=CustomEnvConfig(num_envs=config.env.num_envs))
