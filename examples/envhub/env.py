"""A suite as an environment on the Hugging Face hub, in LeRobot's EnvHub form; it needs `pip install embodied-rl`.

Push this file to a repository of yours as env.py; LeRobot then opens it, wherever embodied-rl is installed:

    lerobot.envs.make_env("OWNER/NAME", n_envs=4, trust_remote_code=True)
"""

from functools import partial
from typing import Any

import embodied_rl as erl
from embodied_rl.sim.views.lerobot import LeRobotVectorEnv

SUITE = "tabletop_goal"
OPTIONS: dict[str, Any] = {"image_size": 256, "protocol": "native"}
"""Of `embodied_rl.make_vec_env`; for LIBERO's suites take the protocol lerobot."""


def make_env(n_envs: int = 1, use_async_envs: bool = False, cfg: Any = None) -> dict[str, dict[int, LeRobotVectorEnv]]:
    """{suite: {number of the task: its envs}}, as LeRobot asks for them.

    Args:
        n_envs: episodes of a task that run at the same time, in one process.
        use_async_envs: changes nothing: no env has a process of its own.
        cfg: an `EnvConfig` of LeRobot whose `task` names another suite.
    """
    suite = getattr(cfg, "task", None) or SUITE
    opened = partial(erl.make_vec_env, suite, **OPTIONS)
    with opened(1) as probe:
        info, states = probe.info, probe.heldout_states
    return {
        suite: {
            number: LeRobotVectorEnv(partial(opened, n_envs, tasks=task.partition("/")[2]), info, n_envs, task, rows)
            for number, (task, rows) in enumerate(states.items())
        }
    }
