"""Re-run an episode that was recorded with LIBERO's official code, from its initial state and actions alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.engine import kernel
from embodied_rl.sim.engine.goal import Goal, compile_predicates
from embodied_rl.sim.engine.world import ControllerMode, World, find_robot
from embodied_rl.sim.task import In, JointRange, On, OnSite, Predicate
from embodied_rl.types import Array

_INPUTS = (
    "init_state", "qacc_warmstart0", "ctrl0", "ctl_initial_joint", "ctl_goal_ori0", "ctl_goal_pos0",
    "gripper_current_action0", "action",
)  # fmt: skip
_COMPILED = ("body_invweight0", "dof_invweight0", "dof_M0")
"""Constants that the official model keeps from a compile at other fixture poses (they differ in rounding)."""
_DRAWER_OPENS_DOWN = {"Microwave": True, "WhiteCabinet": True, "WoodenCabinet": True, "ShortCabinet": False}
"""Whether a fixture's joint falls as it opens."""


def replay(
    scene_xml: Path | str, episode: Mapping[str, Array], *, controller: ControllerMode = "exact"
) -> dict[str, Array]:
    """Run one golden episode and return the arrays that the official code recorded, computed by this engine.

    scene_xml: physics-only scene. episode: the arrays of one episode without the `epK_` prefix (see the golden data's
    README for names, shapes and units); with `model_*` arrays those constants replace the compiled ones, with
    `meta_json` also `pred`, `success` and `reward` come back. UserError when an input array is missing.
    """
    missing = [name for name in _INPUTS if name not in episode]
    if missing:
        raise UserError(f"the episode lacks {', '.join(missing)}; pass its arrays without the 'epK_' prefix")
    model = mujoco.MjModel.from_xml_path(str(scene_xml))
    for name in _COMPILED:
        if f"model_{name}" in episode:
            getattr(model, name)[:] = episode[f"model_{name}"]
    goal = compile_predicates(goal_of(json.loads(str(episode["meta_json"]))), model) if "meta_json" in episode else None
    world = World(model, find_robot(model), goal, controller)
    _start(world, episode)
    rows = [_step(world, goal, action) for action in np.asarray(episode["action"], dtype=np.float64)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _start(world: World, episode: Mapping[str, Array]) -> None:
    """The state after set_init_state, with the controller that env.reset left."""
    world.set_state(np.asarray(episode["init_state"], dtype=np.float64))
    world.data.qacc_warmstart[:] = episode["qacc_warmstart0"]
    world.data.ctrl[:] = episode["ctrl0"]
    control = world.control
    control.posture[:] = episode["ctl_initial_joint"]
    control.goal_ori[:], control.goal_pos[:] = episode["ctl_goal_ori0"], episode["ctl_goal_pos0"]
    control.grip[:] = episode["gripper_current_action0"]
    if "stale_new_update" not in episode or bool(episode["stale_new_update"]):
        return
    control.stale[0] = kernel.KEEP_STALE
    control.pos[:], control.ori[:] = episode["stale_ee_pos"], episode["stale_ee_ori_mat"]
    control.velocity[:3], control.velocity[3:] = episode["stale_ee_pos_vel"], episode["stale_ee_ori_vel"]
    control.q[:], control.qd[:] = episode["stale_joint_pos"], episode["stale_joint_vel"]
    control.jac[:], control.mass[:] = episode["stale_J_full"], episode["stale_mass_matrix"]


def _step(world: World, goal: Goal | None, action: Array) -> dict[str, Any]:
    data, seen, control = world.data, world.seen, world.control
    applied = np.zeros((kernel.SUBSTEPS, world.model.nu))
    world.run(action[None], applied)
    row: dict[str, Any] = {
        "qpos": data.qpos.copy(), "qvel": data.qvel.copy(), "time": data.time,
        "qacc_warmstart": data.qacc_warmstart.copy(), "ctrl": data.ctrl.copy(), "ncon": data.ncon,
        "ctrl_sub": applied, "obs_eef_pos": seen.eef_pos.copy(), "obs_eef_quat": seen.eef_quat[[1, 2, 3, 0]],
        "obs_joint_pos": seen.joints[:7].copy(), "obs_gripper_qpos": seen.joints[7:].copy(),
        "grip_site_xpos": data.site("gripper0_grip_site").xpos.copy(),
        "eef_body_xquat": data.body("robot0_right_hand").xquat.copy(),
        "goal_ori": control.goal_ori.copy(), "goal_pos": control.goal_pos.copy(),
        "gripper_current_action": control.grip.copy(),
    }  # fmt: skip
    if goal is not None:
        row["pred"] = world.held.copy()
        row["success"] = bool(row["pred"].all())
        row["reward"] = float(row["success"])
    return row


def goal_of(meta: Mapping[str, Any]) -> tuple[Predicate, ...]:
    """The goal of a golden task's meta data, in the terms of sim/task.py. UserError for an unknown predicate."""
    return tuple(_predicate(meta["goal_entities"], *fact) for fact in meta["goal_state"])


def _predicate(entities: Mapping[str, Any], word: str, name: str, where: str | None = None) -> Predicate:
    entity = entities[name]
    if where is None:
        return _joint_range(word, entity)
    other, geoms = entities[where], tuple(entity["contact_geoms"])
    body = entity["root_body"]
    if other["type"] == "site":
        if word == "in":
            return In(body, where)
        return OnSite(body, where, geoms, tuple(other["parent_contact_geoms"]) if other["parent_is_object"] else ())
    if word != "on":
        raise UserError(f"goal predicate '{word}' between '{name}' and '{where}' is not known")
    return On(body, other["root_body"], geoms, tuple(other["contact_geoms"]))


def _joint_range(word: str, entity: Mapping[str, Any]) -> JointRange:
    joints, ranges = tuple(entity["joints"]), entity["articulation"]
    if word == "turnon":
        return JointRange(joints, min(ranges["default_turnon_ranges"]), above=True, need_all=False, inclusive=True)
    if word == "turnoff":
        return JointRange(joints, max(ranges["default_turnoff_ranges"]), above=False, need_all=True)
    if word not in ("open", "close"):
        raise UserError(f"goal predicate '{word}' is not known")
    down = _DRAWER_OPENS_DOWN[entity["parent_class"] if entity["type"] == "site" else entity["cls"]]
    values = ranges[f"default_{word}_ranges"]
    above = (word == "open") != down
    return JointRange(joints, min(values) if above else max(values), above=above, need_all=word == "close")
