"""The tasks that EnvPool offers here: suites, names, what success is, how often a policy acts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.rng import FixedSeed, philox
from embodied_rl.sim.envpool.load import load_envpool
from embodied_rl.sim.task import SEEDED_HELDOUT, SEEDED_TRAIN, TaskSpec
from embodied_rl.utils.suites import as_names

ENVPOOL_SUITES = ("metaworld", "fetch", "playground", "dm_control")
_DRAWN = 10_100
_HZ = {
    "Acrobot": 100.0,
    "BallInCup": 50.0,
    "Cartpole": 100.0,
    "Cheetah": 100.0,
    "Dog": 200 / 3,
    "Finger": 50.0,
    "Fish": 25.0,
    "Hopper": 50.0,
    "HumanoidCMU": 50.0,
    "Humanoid": 40.0,
    "Manipulator": 100.0,
    "Pendulum": 50.0,
    "PointMass": 50.0,
    "Quadruped": 50.0,
    "Reacher": 50.0,
    "Stacker": 100.0,
    "Swimmer": 100 / 3,
    "Walker": 40.0,
}
"""Control steps a second of the control suite's domains."""


@dataclass(frozen=True, kw_only=True)
class EnvPoolTask(TaskSpec):
    """A task of EnvPool; `init_states` are seeds, int32 [S].

    Args:
        env_id: EnvPool's own name.
        options: what it is made with, besides seeds.
        success_key: the entry of `info` that tells success; None where the task has none.
        reward_scale: the largest reward of a step, about.
        control_hz: control steps a second.

    Example:
        >>> task = load_tasks("metaworld", ["reach-v3"])[0]
        >>> task.env_id, task.max_episode_steps, task.success_key
        ('MetaWorld/Reach-v3', 500, 'success')
    """

    env_id: str
    options: tuple[tuple[str, Any], ...]
    success_key: str | None
    reward_scale: float
    control_hz: float


def load_tasks(suite: str, names: str | Sequence[str] = ()) -> list[EnvPoolTask]:
    """The tasks of `suite` with these names, all of them without names; UserError for what there is not."""
    known, names = task_ids(suite), as_names(names)
    for name in names:
        if name not in known:
            raise UserError(f"suite '{suite}' has no task '{name}'.{suggest(name, known)}")
    return [_task(suite, name, known[name]) for name in names or known]


@cache
def task_ids(suite: str) -> dict[str, str]:
    """EnvPool's id by the name of the task; UserError for an unknown suite."""
    load_envpool()
    from envpool.registration import registry

    made_by = {key: at.rpartition(".")[2] for key, (at, _, _) in registry.specs.items()}
    if suite == "metaworld":
        return {registry.specs[key][2]["task_name"]: key for key, at in made_by.items() if at == "metaworld"}
    if suite == "fetch":
        return {key: key for key in made_by if key.startswith("Fetch")}
    if suite == "playground":  # each of them is there twice, once with a prefix
        return {key: key for key, at in made_by.items() if at == "playground" and "/" not in key}
    if suite == "dm_control":  # Lqr's actions have no bounds that a policy could be scaled to
        return {_words(key, "-"): key for key, at in made_by.items() if at == "dmc" and not key.startswith("Lqr")}
    raise UserError(f"unknown suite '{suite}'.{suggest(suite, ENVPOOL_SUITES)}")


def _task(suite: str, name: str, env_id: str) -> EnvPoolTask:
    # by default MetaWorld hides where the goal is
    options: dict[str, Any] = {"partially_observable": False} if suite == "metaworld" else {}
    spec = load_envpool().make_spec(env_id, **options)
    return EnvPoolTask(
        name=f"{suite}/{name}",
        suite=suite,
        instruction=_words(env_id.removeprefix("MetaWorld/").removeprefix("Fetch").removeprefix("Panda"), " "),
        max_episode_steps=int(spec.config.max_episode_steps),
        init_states=seeds(),
        train_states=SEEDED_TRAIN,
        heldout_states=SEEDED_HELDOUT,
        env_id=env_id,
        options=tuple(options.items()),
        success_key=_success_key(suite, env_id, spec.state_array_spec),
        reward_scale=10.0 if suite in ("metaworld", "playground") else 1.0,
        control_hz=_control_hz(suite, env_id, spec.config),
    )


@cache
def seeds() -> np.ndarray[Any, np.dtype[np.int32]]:
    """The seed of every initial state, int32 [S], all different."""
    drawn = philox(FixedSeed.ENVPOOL_STATES).choice(2**31 - 1, _DRAWN, replace=False)  # another count would draw others
    return drawn[: SEEDED_HELDOUT.stop].astype(np.int32)


def _success_key(suite: str, env_id: str, states: Any) -> str | None:
    if suite == "dm_control" or (suite == "playground" and not env_id.startswith("Panda")):
        return None
    return next(key for key in ("success", "is_success", "reward_success") if f"info:{key}" in states)


def _control_hz(suite: str, env_id: str, config: Any) -> float:
    if suite == "playground":
        return 1 / float(config.ctrl_dt)
    if suite == "dm_control":
        return next(hz for domain, hz in _HZ.items() if env_id.startswith(domain))
    step = 0.0025 if suite == "metaworld" else 0.002
    return 1 / (step * int(config.frame_skip))


def _words(env_id: str, between: str) -> str:
    """'HumanoidCMURun-v1' -> 'humanoid-cmu-run'."""
    parts = re.sub(r"-v\d+$", "", env_id)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", between, parts).lower()
