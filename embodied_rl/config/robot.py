"""Training on an arm (`--robot`): what an arm is by nature, and what it is refused."""

from __future__ import annotations

import math
from typing import Any

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.config.env import CustomEnvConfig, MujocoConfig
from embodied_rl.errors import UserError
from embodied_rl.utils.suites import TABLETOP_SUITES

TWIN = "twin"
"""The simulated arm over ROS 2."""
SUITE = "arm"
"""What the tasks of a real arm are of."""
STATES = range(50), range(50, 100)
"""Numbers of the initial states that a person sets up on a real arm: of training, and held out."""


def is_real(robot: str) -> bool:
    """Whether the episodes are a real arm's, which a person resets and judges."""
    return robot not in ("", TWIN)


def check_robot(config: Any) -> None:
    """UserError for what an arm can't do, or for a speed that is a twin's; config: a `config.train.TrainConfig`."""
    robot, speed = config.robot, config.robot_speed
    if not 0.01 <= speed <= 1 or math.isnan(speed):
        raise UserError(f"--robot-speed must lie in 0.01 to 1, got {speed:g}.")
    if speed != 1.0 and robot != TWIN:
        raise UserError("--robot-speed is for --robot twin: a real arm's time cannot be changed.")
    if not robot:
        return
    if type(config.algorithm) is not ImitateConfig:
        raise UserError("--robot goes with --algorithm imitate: the others were not tried on one.")
    if not getattr(config.policy, "checkpoint", ""):
        raise UserError("--robot: name the policy that the arm begins with by --policy.checkpoint.")
    if is_real(robot) and not config.tasks:
        raise UserError("say what the arm shall do: --task 'open the drawer' (several times for several tasks).")
    if robot == TWIN and config.suite not in TABLETOP_SUITES:
        raise UserError(
            f"the twin's suites are {', '.join(TABLETOP_SUITES)}, not '{config.suite}': name one by --suite."
        )
    _refuse(config)


def _refuse(config: Any) -> None:
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
        ("--people-rule detector: it looks into the simulator's episodes", config.people_rule == "detector"),
        ("--people: on a real arm whoever holds the dead man's switch helps", real and config.people != "none"),
    ):
        if asked:
            raise UserError(f"--robot {config.robot} and {given}; leave the latter out.")
