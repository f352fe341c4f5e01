"""Re-run an episode that was recorded with LIBERO's official code, from its initial state and actions alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import ControllerMode, Env, find_robot
from embodied_rl.sim.mujoco.goal import Goal, compile_predicates
from embodied_rl.sim.mujoco.task import In, JointRange, On, OnSite, Predicate, Stack, Up
from embodied_rl.types import Array

_INPUTS = (
    "init_state",
    "qacc_warmstart0",
    "ctrl0",
    "ctl_initial_joint",
    "ctl_goal_ori0",
    "ctl_goal_pos0",
    "gripper_current_action0",
    "action",
)
_COMPILED = ("body_invweight0", "dof_invweight0", "dof_M0")
"""Constants that the official model keeps from a compile at other fixture poses (they differ in rounding)."""


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
    model = load_scene(scene_xml, episode)
    goal = compile_predicates(goal_of(json.loads(str(episode["meta_json"]))), model) if "meta_json" in episode else None
    env = Env(model, find_robot(model), goal, controller)
    env.reset(np.asarray(episode["init_state"], dtype=np.float64), episode)
    rows = [_step(env, goal, action) for action in np.asarray(episode["action"], dtype=np.float64)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def load_scene(scene_xml: Path | str, arrays: Mapping[str, Array]) -> mujoco.MjModel:
    """A golden scene, with the compiled constants in `arrays` (`model_*`) when it has them."""
    model = mujoco.MjModel.from_xml_path(str(scene_xml))
    for name in _COMPILED:
        if f"model_{name}" in arrays:
            getattr(model, name)[:] = arrays[f"model_{name}"]
    return model


def _step(env: Env, goal: Goal | None, action: Array) -> dict[str, Any]:
    data, seen, control = env.data, env.seen, env.control
    applied = np.zeros((kernel.SUBSTEPS, env.model.nu))
    env.run(action[None], applied=applied)
    row: dict[str, Any] = {
        "qpos": data.qpos.copy(),
        "qvel": data.qvel.copy(),
        "time": data.time,
        "qacc_warmstart": data.qacc_warmstart.copy(),
        "ctrl": data.ctrl.copy(),
        "ncon": data.ncon,
        "ctrl_sub": applied,
        "obs_eef_pos": seen.eef_pos.copy(),
        "obs_eef_quat": seen.eef_quat[[1, 2, 3, 0]],
        "obs_joint_pos": seen.joints[:7].copy(),
        "obs_gripper_qpos": seen.joints[7:].copy(),
        "grip_site_xpos": data.site("gripper0_grip_site").xpos.copy(),
        "eef_body_xquat": data.body("robot0_right_hand").xquat.copy(),
        "goal_ori": control.goal_ori.copy(),
        "goal_pos": control.goal_pos.copy(),
        "gripper_current_action": control.grip.copy(),
    }
    if goal is not None:
        row["pred"] = env.held.copy()
        row["success"] = bool(row["pred"].all())
        row["reward"] = float(row["success"])
    return row


def goal_of(meta: Mapping[str, Any]) -> tuple[Predicate, ...]:
    """The goal of a golden task's meta data, in the terms of sim/mujoco/task.py. UserError for an unknown predicate."""
    return tuple(_predicate(meta["goal_entities"], *fact) for fact in meta["goal_state"])


def _predicate(entities: Mapping[str, Any], word: str, name: str, where: str | None = None) -> Predicate:
    entity = entities[name]
    if where is None:
        return Up(entity["root_body"]) if word == "up" else _joint_range(word, name, entity)
    other, geoms, body = entities[where], tuple(entity["contact_geoms"]), entity["root_body"]
    if other["type"] == "site":
        if word == "in":
            return In(body, where)
        if word == "on":
            holder = tuple(other["parent_contact_geoms"]) if other["parent_is_object"] else ()
            return OnSite(body, where, geoms if holder else (), holder)
    elif word == "on":
        return On(body, other["root_body"], geoms, tuple(other["contact_geoms"]))
    elif word == "stack":
        x, y, z = other["size"]
        return Stack(body, other["root_body"], geoms, tuple(other["contact_geoms"]), (x, y, z))
    raise UserError(f"the goal ({word} {name} {where}) is not known")


def _joint_range(word: str, name: str, entity: Mapping[str, Any]) -> JointRange:
    """The official rules: one joint opens a fixture, all must be closed; the bounds are those nearer to the other
    state.

    Drawers and doors open downwards or upwards in their joint's value; turnon alone includes its bound.
    """
    joints, ranges = tuple(entity["joints"]), entity["articulation"] or {}
    pair = {"open": "close", "close": "open", "turnon": "turnoff", "turnoff": "turnon"}
    if word not in pair:
        raise UserError(f"the goal ({word} {name}) is not known")
    values, others = ranges.get(f"default_{word}_ranges"), ranges.get(f"default_{pair[word]}_ranges")
    if not joints or not values or not others:
        raise UserError(f"the goal ({word} {name}) needs a joint and its ranges")
    above = min(values) > max(others)
    return JointRange(
        joints,
        min(values) if above else max(values),
        above=above,
        need_all=word in ("close", "turnoff"),
        inclusive=word == "turnon",
    )
