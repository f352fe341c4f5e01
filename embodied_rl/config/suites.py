"""The table of suites: under which name, in which simulators, and what policies see there. Imports no simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embodied_rl.config.env import ENVS, EnvConfig
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.suites import PRO_SUITES, TABLETOP_SUITES
from embodied_rl.utils.suites import SUITES as LIBERO_SUITES


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of tasks with a name.

    simulators: that can run it, as `env.name` names them, the usual one first. observes: what its policies see; a
    suite of images has a state for programs only. example: one of its tasks where it is too large to be run whole; ''
    where it can.
    """

    name: str
    simulators: tuple[str, ...]
    observes: Literal["images", "state"] = "images"
    example: str = ""

    @property
    def benchmark(self) -> str:
        """What commands call the suites that are alike: 'libero' of libero_goal, 'tabletop' of tabletop_goal."""
        return self.name if self.observes == "state" else self.name.partition("_")[0]


_SCENES = ("mujoco", "warp")
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        *(Suite(name, _SCENES) for name in (*TABLETOP_SUITES, *LIBERO_SUITES, *PRO_SUITES)),
        Suite("gymnasium", ("gymnasium",), "state", "Pendulum-v1"),
        Suite("metaworld", ("envpool",), "state", "reach-v3"),
        Suite("fetch", ("envpool",), "state", "FetchReachDense-v4"),
        Suite("playground", ("envpool",), "state", "PandaPickCube-v1"),
        Suite("dm_control", ("envpool",), "state", "cartpole-swingup"),
        Suite("maniskill", ("maniskill",), "state", "PushCube-v1"),
    )
}
"""By name."""
SUITE = "tabletop_spatial"
"""Where none is named."""
STATE_SUITES = tuple(name for name, suite in SUITES.items() if suite.observes == "state")


def suite_named(name: str) -> Suite:
    """The suite of that name; UserError, with a suggestion, where there is none."""
    if name in SUITES:
        return SUITES[name]
    short = " or ".join(f"'{known}'" for known in SUITES if known.endswith(f"_{name}"))
    raise UserError(f"unknown suite '{name}'.{f' Did you mean {short}?' if short else suggest(name, SUITES)}")


def usual_env(suite: str, num_envs: int) -> EnvConfig:
    """So many envs of the simulator that a suite usually runs in; UserError where there is no such suite."""
    return ENVS[suite_named(suite).simulators[0]](num_envs=num_envs)


def check_simulator(suite: Suite, env: EnvConfig) -> None:
    """UserError unless the simulator that `env` is for can run `suite`."""
    name = next(name for name, cls in ENVS.items() if type(env) is cls)
    if name not in suite.simulators:
        known = " or ".join(suite.simulators)
        raise UserError(f"suite '{suite.name}' runs in simulator {known}, not {name}: choose it by --env (env.name).")
