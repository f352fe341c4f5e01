"""The table of suites: under which name, in which simulators, and what policies see there. Imports no simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from embodied_rl.config.env import AUTO, ENVS, EnvConfig
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
STATE_SUITES = tuple(name for name, suite in SUITES.items() if suite.observes == "state")


_UNUSED: dict[str, tuple[Any, ...]] = {
    "renderer": (AUTO,),
    "render_quality": (AUTO,),
    "era": (AUTO, "current"),
    "reward": ("sparse",),
    "reward_gamma": (None,),
    "step_reward": (AUTO,),
    "control": (AUTO,),
    **{f"randomize_{what}": (0, 0.0) for what in ("color", "light", "camera", "friction", "mass")},
    "deterministic": (False,),
    "processes": (None,),
}
"""What files of before may say of options that their simulator has not."""


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


def current_env(data: Mapping[str, Any], suite: str, source: str) -> dict[str, Any]:
    """The `env` of a file as it is written today: before, one class had the options of every simulator.

    Args:
        data: as the file has it.
        suite: that the file is for.
        source: the file's name, for messages.

    Raises:
        UserError: an option has a value that its simulator never had a use for.
    """
    if "simulator" not in data:
        return dict(data)
    values = dict(data)
    asked = values.pop("simulator")
    usual = SUITES[suite].simulators[0] if suite in SUITES else "custom"
    name = "warp" if asked == "warp" else usual
    known = {field.name for field in fields(ENVS[name])}
    for key in [key for key in values if key not in known]:
        if key == "num_threads":  # runs named the number of their machine, also where nothing used it
            del values[key]
        elif key in _UNUSED and values.pop(key) not in _UNUSED[key]:  # the reader knows other keys, or not
            raise UserError(f"{source}: 'env.{key}' does not apply to simulator {name}: remove it, write name: {name}.")
    return {"name": name, **values}
