"""What `lerobot-eval --env.type=embodied_rl` takes, and the envs that it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lerobot.configs import FeatureType, PolicyFeature  # type: ignore[import-not-found]
from lerobot.envs import EnvConfig  # type: ignore[import-not-found]
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE  # type: ignore[import-not-found]

import embodied_rl as erl
from embodied_rl.errors import UserError
from embodied_rl.sim.views.lerobot import CAMERAS, LeRobotVectorEnv
from embodied_rl.vec_env import EnvInfo

STATE = "agent_pos"
"""End-effector position (m, 3), its axis-angle (rad, 3), gripper finger positions (m, 2)."""
STATE_DIM, ACTION_DIM, HZ = 8, 7, 20
_ELSEWHERE = {
    "image_size": "env.image_size",
    "protocol": "env.protocol",
    "tasks": "env.task_ids",
    "num_envs": "eval.batch_size",
}


@EnvConfig.register_subclass("embodied_rl")
@dataclass
class EmbodiedRLEnv(EnvConfig):
    """Suites of LIBERO's format: LIBERO's own, LIBERO-PRO's, and the built-in tabletop ones.

    A task's episodes begin in its held-out initial states, one after another: LIBERO's 50 official ones. Tasks of a
    suite have the benchmark's numbers; one that is named by itself has number 0.

    Args:
        task: names of suites, or of tasks such as libero_goal/turn_on_the_stove, joined by commas.
        task_ids: numbers of tasks in each suite; None: all.
        fps: control steps a second, which no suite has otherwise.
        image_size: height and width in pixels of the policy's pictures; 360 as in LeRobot's own LIBERO.
        protocol: how an episode is run; None: 'lerobot' on LIBERO's suites (its settle steps, horizons and picture
            orientation), 'native' on others.
        options: further ones of `embodied_rl.make_vec_env`, such as {render_quality: fast}.
    """

    task: str | None = "libero_spatial"
    task_ids: list[int] | None = None
    fps: int = HZ
    image_size: int = 360
    protocol: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        picture = PolicyFeature(FeatureType.VISUAL, (self.image_size, self.image_size, 3))
        pictures = {f"{OBS_IMAGES}.{camera}": picture for camera in CAMERAS}
        robot = {
            ACTION: PolicyFeature(FeatureType.ACTION, (ACTION_DIM,)),
            STATE: PolicyFeature(FeatureType.STATE, (STATE_DIM,)),
        }
        self.features = robot | pictures | self.features
        self.features_map = {ACTION: ACTION, STATE: OBS_STATE, **{key: key for key in pictures}} | self.features_map

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Nothing goes through `gymnasium.make`."""
        return {}

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, LeRobotVectorEnv]]:
        """{suite, or suite/task as env.task names one: {number of the task: its envs}}.

        Args:
            n_envs: episodes of a task that run at the same time, in one process and drawn together.
            use_async_envs: changes nothing: no env has a process of its own.

        Raises:
            UserError: There is no such suite, task or option, or a suite is not of LIBERO's format.
        """
        return {suite.strip(): self._suite(suite.strip(), n_envs) for suite in (self.task or "").split(",")}

    def _suite(self, suite: str, n_envs: int) -> dict[int, LeRobotVectorEnv]:
        for name in _ELSEWHERE.keys() & self.options.keys():
            raise UserError(f"env.options has '{name}': give it as --{_ELSEWHERE[name]}.")
        suite, _, alone = suite.partition("/")
        protocol = self.protocol or ("lerobot" if suite.startswith("libero_") else "native")
        opened = partial(erl.make_vec_env, suite, image_size=self.image_size, protocol=protocol, **self.options)
        with opened(num_envs=1, tasks=alone or ()) as probe:
            info, states = probe.info, probe.heldout_states
        self._check(info)
        tasks = list(states)
        return {
            number: LeRobotVectorEnv(
                partial(opened, num_envs=n_envs, tasks=tasks[number].partition("/")[2]),
                info,
                n_envs,
                tasks[number],
                states[tasks[number]],
            )
            for number in self._numbers(suite, tasks)
        }

    def _check(self, info: EnvInfo) -> None:
        found = (len(info.cameras), info.proprio_dim, info.action_dim, info.control_hz)
        wanted = (len(CAMERAS), STATE_DIM, ACTION_DIM, HZ)
        if found != wanted:
            raise UserError(
                f"env.task '{info.suite}': cameras, numbers of the robot's state and of an action, and Hz are {found}, "
                f"and must be {wanted}, as in LIBERO's suites and the tabletop ones."
            )
        if self.fps != HZ:
            raise UserError(f"env.fps {self.fps}: suite '{info.suite}' has {HZ}; leave it out.")

    def _numbers(self, suite: str, tasks: Sequence[str]) -> list[int]:
        wanted = range(len(tasks)) if self.task_ids is None else sorted(set(self.task_ids))
        for number in wanted:
            if not 0 <= number < len(tasks):
                raise UserError(f"env.task_ids: suite '{suite}' has tasks 0 to {len(tasks) - 1}, and no {number}.")
        return list(wanted)
