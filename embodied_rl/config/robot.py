"""Training on an arm (`--robot`): what an arm is by nature, and what it is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.config.env import CustomEnvConfig, MujocoConfig, resized
from embodied_rl.errors import UserError
from embodied_rl.utils.suites import TABLETOP_SUITES

if TYPE_CHECKING:
    from embodied_rl.config.train import TrainConfig

TWIN = "twin"
"""The simulated arm over ROS 2."""
SUITE = "arm"
"""What the tasks of a real arm are of."""
STATES = range(50), range(50, 100)
"""Numbers of the initial states that a person sets up on a real arm: of training, and held out."""
_EVALUATED = 10
"""Held-out states of each task unless told: each takes an arm's time, before and after training."""


def is_real(robot: str) -> bool:
    """Whether the episodes are a real arm's, which a person resets and judges."""
    return robot not in ("", TWIN)


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


def check_robot(config: TrainConfig) -> None:
    """UserError for what an arm can't do, or for a speed that is a twin's."""
    robot, speed = config.robot, config.robot_speed
    if not 0.01 <= speed <= 1 or math.isnan(speed):
        raise UserError(f"--robot-speed must lie in 0.01 to 1, got {speed:g}.")
    if speed != 1.0 and robot != TWIN:
        raise UserError("--robot-speed is for --robot twin: a real arm's time cannot be changed.")
    if not robot:
        return
    if not isinstance(config.algorithm, ImitateConfig):
        raise UserError("--robot goes with --algorithm imitate: rewards alone take more episodes than an arm has.")
    if not getattr(config.policy, "checkpoint", ""):
        raise UserError("--robot: name the policy that the arm begins with by --policy.checkpoint.")
    if is_real(robot) and not config.tasks:
        raise UserError("say what the arm shall do: --task 'open the drawer' (several times for several tasks).")
    if robot == TWIN and config.suite not in TABLETOP_SUITES:
        raise UserError(
            f"the twin's suites are {', '.join(TABLETOP_SUITES)}, not '{config.suite}': name one by --suite."
        )
    _refuse(config)


def _refuse(config: TrainConfig) -> None:
    real = is_real(config.robot)
    for given, asked in (
        (f"--env.num-envs {config.env.num_envs}: an arm is one env", config.env.num_envs != 1),
        ("--env.processes: an arm is one env", config.env.watched is not None),
        ("--env warp: an arm is none of MuJoCo Warp's", not isinstance(config.env, MujocoConfig | CustomEnvConfig)),
        ("--perturb: an arm's episodes cannot be changed", bool(config.perturb)),
        (
            f"--train-states {config.train_states}: a robot begins from its training states",
            config.train_states != "train",
        ),
        (f"--videos {config.videos}: an arm is recorded as it runs", config.videos != 0),
        (f"--protocol {config.protocol}: it is a simulator's", config.protocol != "native"),
        ("--people: on a real arm whoever holds the dead man's switch helps", real and config.people != "none"),
    ):
        if asked:
            raise UserError(f"--robot {config.robot} and {given}; leave the latter out.")
