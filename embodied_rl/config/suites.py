"""The table of suites: under which name, in which simulators, and what policies see there. Imports no simulator."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.config.env import ENVS, EnvConfig
from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.family import Observes
from embodied_rl.utils.plugins import imported, load_installed
from embodied_rl.utils.suites import ALOHA_SUITES, OFFICIAL_SUITES, PRO_SUITES, TABLETOP_SUITES


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of tasks with a name.

    simulators: that can run it, as `env.name` names them, the usual one first. drawn_by: the one of them that shows
    images, where the usual one does not. observes: what its policies see; a suite of images has a state for programs
    only, and in one of any it depends on the task and the simulator. example: one of its tasks where it is too large to
    be run whole; '' where it can. is_custom: registered by a user. draws_states: its tasks can have further initial
    states. task: its only one, which needs no name.
    """

    name: str
    simulators: tuple[str, ...]
    observes: Observes = "images"
    example: str = ""
    is_custom: bool = False
    drawn_by: str = ""
    draws_states: bool = False
    task: str = ""

    def simulator(self, observes: Observes) -> str:
        """The one that policies which observe that usually act in."""
        return self.drawn_by if self.drawn_by and observes == "images" else self.simulators[0]

    @property
    def benchmark(self) -> str:
        """What commands call the suites that are alike: 'libero' of libero_goal, 'tabletop' of tabletop_goal."""
        return self.name.partition("_")[0] if self.observes == "images" else self.name


_SCENES = ("mujoco", "warp")
SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        *(Suite(name, _SCENES, draws_states=True) for name in TABLETOP_SUITES),
        *(Suite(name, _SCENES) for name in (*OFFICIAL_SUITES, *PRO_SUITES)),
        Suite("gymnasium", ("gymnasium",), "any", "Pendulum-v1"),
        Suite("metaworld", ("envpool", "metaworld"), "any", "reach-v3", drawn_by="metaworld"),
        Suite("fetch", ("envpool",), "state", "FetchReachDense-v4"),
        Suite("playground", ("envpool",), "state", "PandaPickCube-v1"),
        Suite("dm_control", ("envpool",), "state", "cartpole-swingup"),
        Suite("maniskill", ("maniskill",), "any", "PushCube-v1"),
        *(Suite(name, ("aloha",), "any", task=name.removeprefix("aloha_")) for name in ALOHA_SUITES),
    )
}
"""By name; `config.register` adds those of users."""
SUITE = "tabletop_spatial"
"""Where none is named."""
STATE_SUITES = tuple(name for name, suite in SUITES.items() if suite.observes != "images")
"""Whose tasks have a state, some with images beside it; they are named one by one."""


def find_suite(name: str) -> Suite | None:
    """The suite of that name, also one of an installed package that was not asked yet; None where there is none."""
    if name not in SUITES:
        load_installed()
    return SUITES.get(name)


def suite_named(name: str) -> Suite:
    """The same; UserError, with a suggestion, where there is none."""
    found = find_suite(name)
    if found is not None:
        return found
    short = " or ".join(f"'{known}'" for known in SUITES if known.endswith(f"_{name}"))
    near = f" Did you mean {short}?" if short else suggest(name, SUITES)
    raise UserError(f"unknown suite '{name}'.{near}{register_hint()}")


def is_custom(name: str) -> bool:
    """Whether that is a suite that a user registered."""
    found = find_suite(name)
    return found is not None and found.is_custom


def register_hint() -> str:
    """What to do about an unknown name where no module was named that may register it."""
    return "" if imported() else " One of your own: name the module that registers it with --import."


def custom_suites() -> list[str]:
    """Those that users registered, of installed packages too."""
    load_installed()
    return [name for name, suite in SUITES.items() if suite.is_custom]


def usual_env(suite: str, num_envs: int, observes: Observes = "state") -> EnvConfig:
    """So many envs of the simulator that policies which observe that usually act in; UserError for an unknown suite."""
    return ENVS[suite_named(suite).simulator(observes)](num_envs=num_envs)


def check_simulator(suite: Suite, env: EnvConfig) -> None:
    """UserError unless the simulator that `env` is for can run `suite`."""
    if not any(type(env) is ENVS[name] for name in suite.simulators):
        name = next(name for name, cls in ENVS.items() if type(env) is cls)
        known = " or ".join(suite.simulators)
        raise UserError(f"suite '{suite.name}' runs in simulator {known}, not {name}: choose it by --env (env.name).")
