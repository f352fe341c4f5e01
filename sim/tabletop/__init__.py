"""Tabletop suites in LIBERO's format, made by this project: nothing to download.

tasks = load_suite("tabletop_object")
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from importlib.resources import files

import mujoco
import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.bddl import Problem, parse_bddl
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.tabletop.goals import goal_predicates
from embodied_rl.sim.tabletop.initial_states import HELDOUT_STATES, TRAIN_STATES, fresh_states
from embodied_rl.sim.tabletop.scene import build_model

_MAX_EPISODE_STEPS = {"tabletop_spatial": 150, "tabletop_object": 150, "tabletop_goal": 150, "tabletop_long": 300}
"""Control steps at 20 Hz."""
_ASSETS = "embodied_rl.assets.tabletop"


def suites() -> tuple[str, ...]:
    """The names that `load_suite` knows."""
    return tuple(_MAX_EPISODE_STEPS)


@cache
def problems(suite: str) -> dict[str, Problem]:
    """The suite's task files, parsed, by short name, in alphabetical order. UserError for an unknown suite."""
    if suite not in _MAX_EPISODE_STEPS:
        raise UserError(f"unknown tabletop suite '{suite}'.{suggest(suite, suites())}")
    folder = files(_ASSETS) / "bddl" / suite
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".bddl")), key=lambda f: f.name)
    return {f.name.removesuffix(".bddl"): parse_bddl(f.read_text(encoding="utf-8"), str(f)) for f in found}


def problem_of(task_name: str) -> Problem:
    """The parsed task file of task 'suite/short_name'. UserError when there is no such task."""
    suite, _, short = task_name.partition("/")
    known = problems(suite)
    if short not in known:
        raise UserError(f"suite '{suite}' has no task '{short}'.{suggest(short, known)}")
    return known[short]


def _build(task_name: str, visual: bool) -> mujoco.MjModel:
    return build_model(problem_of(task_name), visual=visual)


def load_suite(name: str) -> list[MujocoTask]:
    """Every task of a suite, with its 50 training and 50 held-out initial states. UserError for an unknown suite."""
    found = problems(name)
    with (files(_ASSETS) / "init_states" / f"{name}.npz").open("rb") as file, np.load(file) as arrays:
        states = {short: arrays[short] for short in found}
    return [
        MujocoTask(
            name=f"{name}/{short}",
            suite=name,
            instruction=problem.language,
            max_episode_steps=_MAX_EPISODE_STEPS[name],
            goal=goal_predicates(problem),
            init_states=states[short],
            train_states=TRAIN_STATES,
            heldout_states=HELDOUT_STATES,
            build_physics=partial(_build, f"{name}/{short}", False),
            build_visual=partial(_build, f"{name}/{short}", True),
        )
        for short, problem in found.items()
    ]


def with_fresh_states(task: MujocoTask, count: int, seed: int) -> MujocoTask:
    """`task` with `count` newly drawn initial states, all for training, in place of its stored ones."""
    states = fresh_states(task.name, problem_of(task.name), count, seed)
    return replace(task, init_states=states, train_states=range(count), heldout_states=range(0))


def with_further_states(task: MujocoTask, count: int, seed: int) -> MujocoTask:
    """`task` with `count` newly drawn initial states to train on; those that are held out stay what they are."""
    states, first = fresh_states(task.name, problem_of(task.name), count, seed), len(task.init_states)
    return replace(
        task, init_states=np.concatenate([task.init_states, states]), train_states=range(first, first + count)
    )
