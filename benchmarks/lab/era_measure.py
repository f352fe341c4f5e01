"""What `era_check` measures of our engine, against recordings of the official code on an older MuJoCo."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mujoco
import numpy as np

from embodied_rl.benchmarks.lab.official.pick import SETTLE_STEPS, STEPS, Pick
from embodied_rl.errors import UserError
from embodied_rl.sim.eras import Era
from embodied_rl.sim.libero.tasks import LiberoTask, load_task
from embodied_rl.sim.libero.tasks import suites as libero_suites
from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_goal, compile_predicates
from embodied_rl.sim.mujoco.indicators import FIRST_GROUP
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.task import On
from embodied_rl.sim.render.gl import GlRenderer
from embodied_rl.types import Array

ERAS: tuple[Era, Era] = ("current", "mujoco-3.3")
SUITES = libero_suites()
VERSION = mujoco.__version__
_COST_ROUNDS, _COST_STEPS = 12, 20


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task is here, by era, and on the old version.

    off_mm: of each state, the largest distance of a body from where the old version has it. holds: for each state and
    'on' fact, whether it holds (here, on the old version). picked, picked_old: success of the scripted pick from each
    state; empty where none was recorded. grey: mean difference of a picture's values (of 255); empty without pictures.
    """

    task: str
    off_mm: dict[str, list[float]]
    holds: dict[str, list[tuple[bool, bool]]]
    picked: dict[str, list[bool]]
    picked_old: list[bool]
    grey: dict[str, float]


def measure(root: Path, name: str, recorded: dict[str, Array], steps: int, frames: Path | None) -> TaskResult:
    """Repeat what was recorded of a task (see official/settle.py). frames: its recorded pictures; None: it has none."""
    off, holds = _settle(root, name, recorded, steps)
    picked_old = recorded["picked"].tolist() if "picked" in recorded else []
    picked = {str(era): _pick(root, name, recorded, era) for era in ERAS} if picked_old else {}
    return TaskResult(name, off, holds, picked, picked_old, images(root, name, frames) if frames else {})


def _settle(
    root: Path, name: str, recorded: dict[str, Array], steps: int
) -> tuple[dict[str, list[float]], dict[str, list[tuple[bool, bool]]]]:
    facts = [
        On(**cast("dict[str, Any]", {k: tuple(v) if isinstance(v, list) else v for k, v in fact.items()}))
        for fact in json.loads(str(recorded["on"]))
    ]
    off: dict[str, list[float]] = {}
    holds: dict[str, list[tuple[bool, bool]]] = {}
    for era in ERAS:
        task = load_task(root, name, era)
        model = task.build_physics()
        _check_same_scene(name, model, recorded)
        env = Env(model, find_robot(model), compile_predicates(tuple(facts), model), "exact")
        off[era], holds[era] = [], []
        for state, bodies in enumerate(recorded["settled"]):
            env.reset(task.init_states[state], _start(recorded))
            env.run(_rest(steps), stop=False)
            off[era].append(1e3 * float(np.linalg.norm(env.data.xpos - bodies, axis=1).max()))
            holds[era] += zip(env.held.tolist(), recorded["holds"][state].tolist(), strict=True)
    return off, holds


def _pick(root: Path, name: str, recorded: dict[str, Array], era: Era) -> list[bool]:
    task = load_task(root, name, era)
    model = task.build_physics()
    env = Env(model, find_robot(model), compile_goal(task, model), "exact")
    return [_picks(env, task.init_states[state], _start(recorded)) for state in range(len(recorded["picked"]))]


def _picks(env: Env, state: Array, start: dict[str, Array]) -> bool:
    env.reset(state, start)
    env.run(_rest(SETTLE_STEPS), stop=False)
    script, reward = Pick(env.model, env.data), np.zeros(1, np.float32)
    for _ in range(STEPS):
        env.run(script.act()[None].astype(np.float32), reward, stop=False)
        if reward[0]:
            return True
    return False


def images(root: Path, name: str, path: Path) -> dict[str, float]:
    """By era, the mean difference of a value (of 255) from the pictures at `path` (see official/frames.py)."""
    found = {}
    with np.load(path) as arrays:
        recorded = dict(arrays)
    for era in ERAS:
        visual = load_task(root, name, era).build_visual()
        renderer = GlRenderer("osmesa", images=True)
        scene, out = renderer.add_scene(visual), np.empty_like(recorded["images"][0])
        gaps = []
        for image, xpos, xmat, alpha in zip(
            recorded["images"], recorded["xpos"], recorded["xmat"], recorded["site_alpha"], strict=True
        ):
            lit = tuple(int(group) for group in set(visual.site_group[alpha > 0]) if group >= FIRST_GROUP)
            renderer.render(scene, xpos, xmat, PANDA.cameras, out, lit)
            gaps.append(np.abs(out.astype(np.int16) - image).mean())
        renderer.remove_scene(scene)
        found[era] = float(np.mean(gaps))
    return found


def cost(root: Path, names: Sequence[str]) -> dict[str, float]:
    """CPU milliseconds of a control step by era, in turns, over settled scenes; of each task the median round."""
    totals = dict.fromkeys(ERAS, 0.0)
    for name in names:
        envs = {era: _settled(load_task(root, name, era)) for era in ERAS}
        spent: dict[str, list[float]] = {era: [] for era in ERAS}
        for _ in range(_COST_ROUNDS):
            for era, env in envs.items():
                began = time.thread_time()
                env.run(_rest(_COST_STEPS), stop=False)
                spent[era].append(1e3 * (time.thread_time() - began) / _COST_STEPS)
        for era in ERAS:
            totals[era] += float(np.median(spent[era])) / len(names)
    return {str(era): value for era, value in totals.items()}


def _settled(task: LiberoTask) -> Env:
    model = task.build_physics()
    env = Env(model, find_robot(model), compile_goal(task, model), "exact")
    env.reset(task.init_states[0], task.start)
    env.run(_rest(40), stop=False)
    return env


def _rest(steps: int) -> Array:
    actions = np.zeros((steps, 7), np.float32)
    actions[:, 6] = -1.0
    return actions


def _start(recorded: dict[str, Array]) -> dict[str, Array]:
    return {key.removeprefix("start_"): value for key, value in recorded.items() if key.startswith("start_")}


def _check_same_scene(name: str, model: mujoco.MjModel, recorded: dict[str, Array]) -> None:
    """UserError unless both sides have the same bodies, and fixtures at the same places."""
    bodies = [model.body(i).name for i in range(model.nbody)]
    if bodies != recorded["bodies"].tolist() or not np.allclose(
        np.hstack([model.body_pos, model.body_quat]), recorded["fixed"], 0, 1e-9
    ):
        raise UserError(f"'{name}': the exported task's scene is not the one that was recorded; remove the recording")
