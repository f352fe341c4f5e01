"""Other places for the objects of an initial state: a few centimetres and a turn, with nothing pushed into anything."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np

from embodied_rl.types import Array

_SHIFT, _TURN = 0.03, math.radians(30.0)
"""Largest shift along each horizontal axis (m) and turn about the vertical (rad), at level 1."""
_DRAWS = 20
_DEEP = 0.001
"""A contact deeper than this (m) that was not there before means that two things overlap."""
_DROP, _DROP_STEP = 0.12, 0.005
"""An object that touches nothing (LIBERO's official states let go of some 7 cm over the table) is looked for something
this far below it, in steps of so much (m)."""
Pair = tuple[int, int]


def move_objects(
    model: mujoco.MjModel, state: Array, rng: np.random.Generator, level: float
) -> tuple[Array, dict[str, Any]]:
    """A copy of `state` (time, qpos, qvel) with objects moved, and by how much: {body: [x m, y m, turn degrees]}.

    model: the physics model. An object moves if it stands on something that stands still and carries or touches no
    other object; it stays on the same surface and overlaps nothing. One for which 20 draws find no place stays put and
    is left out of the record.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = state[1 : 1 + model.nq]
    moved: dict[str, Any] = {}
    for joint in np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE):
        body = int(model.jnt_bodyid[joint])
        at = int(model.jnt_qposadr[joint])
        below, drop = _support(model, data, at, body)
        if not below or any(model.body_weldid[model.geom_bodyid[geom]] != 0 for geom in below):
            continue
        draw = _find_place(model, data, at, body, below, drop, rng, level)
        if draw is not None:
            moved[model.body(body).name] = draw
    out = state.copy()
    out[1 : 1 + model.nq] = data.qpos
    return out, moved


def _find_place(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    at: int,
    body: int,
    below: set[int],
    drop: float,
    rng: np.random.Generator,
    level: float,
) -> list[float] | None:
    """Move the object whose free joint starts at qpos[at]; back where it was, and None, if no place is found.

    below: the geoms that it touches `drop` metres lower; it must touch the same ones there, and overlap nothing here.
    """
    before = data.qpos[at : at + 7].copy()
    mujoco.mj_fwdPosition(model, data)
    deep = _overlaps(model, data)
    for _ in range(_DRAWS):
        x, y = level * _SHIFT * rng.uniform(-1, 1, 2)
        turn = level * _TURN * rng.uniform(-1, 1)
        spin = np.array([math.cos(turn / 2), 0.0, 0.0, math.sin(turn / 2)])
        data.qpos[at : at + 2] = before[:2] + np.array([x, y])
        mujoco.mju_mulQuat(data.qpos[at + 3 : at + 7], spin, before[3:])
        mujoco.mj_fwdPosition(model, data)
        if _overlaps(model, data) <= deep and _below(model, data, at, body, drop) == below:
            return [float(x), float(y), math.degrees(turn)]
    data.qpos[at : at + 7] = before
    return None


def _support(model: mujoco.MjModel, data: mujoco.MjData, at: int, body: int) -> tuple[set[int], float]:
    """Geoms that the object whose free joint is at qpos[at] touches, or would first if let go, and how far below."""
    for drop in np.arange(0.0, _DROP, _DROP_STEP):
        found = _below(model, data, at, body, float(drop))
        if found:
            return found, float(drop)
    return set(), 0.0


def _below(model: mujoco.MjModel, data: mujoco.MjData, at: int, body: int, drop: float) -> set[int]:
    """Geoms that the object would touch `drop` metres lower; it stays where it is."""
    height = data.qpos[at + 2]
    data.qpos[at + 2] = height - drop
    mujoco.mj_fwdPosition(model, data)
    data.qpos[at + 2] = height
    return _touching(model, data, body)


def _touching(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> set[int]:
    """Geoms of others that touch the object `body` or anything fixed to it."""
    found: set[int] = set()
    for contact in data.contact:
        for mine, other in (contact.geom, contact.geom[::-1]):
            if mine >= 0 and other >= 0 and model.body_weldid[model.geom_bodyid[mine]] == model.body_weldid[body]:
                found.add(int(other))
    return found


def _overlaps(model: mujoco.MjModel, data: mujoco.MjData) -> set[Pair]:
    """Pairs of bodies in deep contact."""
    return {
        (int(model.geom_bodyid[c.geom[0]]), int(model.geom_bodyid[c.geom[1]])) for c in data.contact if c.dist < -_DEEP
    }
