"""Exported tasks that tests make: the tabletop suite's scenes written in the format of LIBERO's exported tasks."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from embodied_rl.sim.libero.exported import BlobStore, pack_array, pack_model, write_exported
from embodied_rl.sim.libero.install.official.cuts import cuts
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import Array

NAME = "libero_goal/turn_on_the_stove"
START_ROW = 3
SITE, KNOB = "stove_1_cook_region", "stove_1_knob_joint"
OTHER = "libero_goal/put_the_bowl_on_the_stove"
BDDL = """(define (problem fake) (:language Turn it on) (:fixtures stove_1 - stove) (:objects bowl_1 - bowl)
(:obj_of_interest bowl_1) (:goal (TurnOn stove_1)))"""


@cache
def model_task(short: str) -> MujocoTask:
    """The tabletop task that stands for an official one."""
    return next(task for task in load_suite("tabletop_goal") if task.name.endswith(f"/{short}"))


@cache
def binary(short: str, visual: bool) -> bytes:
    """Its scene as MJB."""
    task = model_task(short)
    return saved(task.build_visual() if visual else task.build_physics())


def saved(model: mujoco.MjModel) -> bytes:
    """A model as MJB."""
    buffer = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


def contents(root: Path, name: str, index: int = 0) -> dict[str, Any]:
    """Store the blobs of a task; returns what its JSON file says."""
    short = name.partition("/")[2]
    task, store = model_task(short), BlobStore(root)
    goal = [{"kind": type(predicate).__name__, **asdict(predicate)} for predicate in task.goal]
    models = {}
    for kind in ("visual", "physics"):
        data = binary(short, kind == "visual")
        model = mujoco.MjModel.from_binary_path("x.mjb", {"x.mjb": data})
        models[kind] = pack_model(store, data, cuts(model, data))
    return {
        **models,
        "name": name,
        "suite": name.partition("/")[0],
        "index": index,
        "mujoco": mujoco.__version__,
        "bddl": BDDL,
        "bddl_language": "Turn it on",
        "instruction": task.instruction,
        "goal": goal,
        "approximate": [],
        "fixtures": {"stove": {"body": "stove_main", "pos": [0.0, 0.2, 0.9], "quat": [1, 0, 0, 0]}},
        "cameras": {"agentview": {"body": "world", "pos": [1.0, 0, 1], "quat": [1, 0, 0, 0], "fovy": 45.0}},
        "gripper": {"speed": 0.01},
        "indicators": [
            {
                "site": SITE,
                "when": {"joints": [KNOB], "threshold": 0.5, "above": True, "need_all": False, "inclusive": True},
            }
        ],
        "init_states": pack_array(store, task.init_states),
        "start": {key: pack_array(store, values) for key, values in start_of(task).items()},
    }


def start_of(task: MujocoTask) -> dict[str, Array]:
    """What a controller that was just reset in initial state `START_ROW` would leave behind."""
    model = task.build_physics()
    data = mujoco.MjData(model)
    data.qpos[:] = task.init_states[START_ROW][1 : 1 + model.nq]
    mujoco.mj_forward(model, data)
    grip = data.site("gripper0_grip_site")
    return {
        "qacc_warmstart0": np.zeros(model.nv),
        "ctrl0": np.zeros(model.nu),
        "ctl_initial_joint": data.qpos[:7].copy(),
        "ctl_goal_ori0": grip.xmat.reshape(3, 3).copy(),
        "ctl_goal_pos0": grip.xpos.copy(),
        "gripper_current_action0": np.zeros(2),
        "stale_new_update": np.array(1.0),
    }


def install_fake(root: Path, names: tuple[str, ...] = (NAME, OTHER)) -> None:
    """Write these tasks whole, as they are exported."""
    for index, name in enumerate(names):
        write_exported(root, contents(root, name, index))
