"""A task's goal as flat arrays, evaluated by compiled code after every control step.

Rules as in LIBERO's predicates; positions and contacts are those that the last mj_step left (one substep old), joint
positions are current.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mujoco
import numpy as np
from numba import njit

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.mjlib import contact_geoms, num_contacts
from embodied_rl.sim.mujoco.task import In, JointRange, MujocoTask, On, OnSite, Predicate, Stack, Up
from embodied_rl.types import Array

_ON, _ON_SITE, _IN, _JOINTS, _UP, _STACK = range(6)
_ON_DISTANCE = 0.03
"""Horizontal distance (m) of two origins under which one counts as on the other."""
_SITE_BELOW, _SITE_ABOVE = 0.005, 0.10
"""How far (m) under and over the top of a site an origin may be."""
_BOX_SLACK = 0.01
"""A box region reaches this much (m) lower than its site."""
_UP_HEIGHT = 1.0
"""From this height (m) an origin is up."""


class Goal(NamedTuple):
    """G predicates as arrays.

    Args:
        kind, body, other: int64 [G]; other is the id of a body or site.
        size: float64 [G, 3], half extents of a box.
        needs_contact: bool [G].
        side: uint8 [G, ngeom], 1 for geoms of the object, 2 for geoms that it must touch, 3 for both.
        joints: int64 [G, J], qpos addresses, -1 where unused.
        threshold: float64 [G]. above, inclusive, need_all: bool [G].
    """

    kind: Array
    body: Array
    other: Array
    size: Array
    needs_contact: Array
    side: Array
    joints: Array
    threshold: Array
    above: Array
    inclusive: Array
    need_all: Array


def compile_goal(task: MujocoTask, model: mujoco.MjModel) -> Goal:
    """Look up every name of `task.goal` in `model`; UserError for an empty goal or a name that the model lacks."""
    if not task.goal:
        raise UserError(f"task '{task.name}' has no goal; give it at least one predicate")
    try:
        return compile_predicates(task.goal, model)
    except KeyError as missing:
        raise UserError(f"goal of task '{task.name}': {missing.args[0]}") from None


def compile_predicates(predicates: Sequence[Predicate], model: mujoco.MjModel) -> Goal:
    """Flat arrays of `predicates`; KeyError for a name that the model lacks."""
    count = len(predicates)
    width = max([1, *(len(p.joints) for p in predicates if isinstance(p, JointRange))])
    goal = Goal(
        kind=np.zeros(count, np.int64),
        body=np.zeros(count, np.int64),
        other=np.zeros(count, np.int64),
        size=np.zeros((count, 3)),
        needs_contact=np.zeros(count, np.bool_),
        side=np.zeros((count, model.ngeom), np.uint8),
        joints=np.full((count, width), -1, np.int64),
        threshold=np.zeros(count),
        above=np.zeros(count, np.bool_),
        inclusive=np.zeros(count, np.bool_),
        need_all=np.zeros(count, np.bool_),
    )
    for row, predicate in enumerate(predicates):
        _fill(goal, row, predicate, model)
    return goal


def _fill(goal: Goal, row: int, predicate: Predicate, model: mujoco.MjModel) -> None:
    if isinstance(predicate, JointRange):
        goal.kind[row] = _JOINTS
        for k, name in enumerate(predicate.joints):
            goal.joints[row, k] = model.jnt_qposadr[model.joint(name).id]
        goal.threshold[row], goal.above[row] = predicate.threshold, predicate.above
        goal.inclusive[row], goal.need_all[row] = predicate.inclusive, predicate.need_all
        return
    goal.body[row] = model.body(predicate.body).id
    if isinstance(predicate, Up):
        goal.kind[row] = _UP
        return
    if isinstance(predicate, On | Stack):
        goal.kind[row], goal.other[row] = _ON, model.body(predicate.other).id
        _mark(goal, row, model, predicate.body_geoms, predicate.other_geoms)
        if isinstance(predicate, Stack):
            goal.kind[row], goal.size[row] = _STACK, predicate.half_extents
        return
    site = model.site(predicate.site).id
    goal.kind[row], goal.other[row], goal.size[row] = (
        _IN if isinstance(predicate, In) else _ON_SITE,
        site,
        model.site_size[site],
    )
    if isinstance(predicate, OnSite) and predicate.contact_geoms:
        _mark(goal, row, model, predicate.body_geoms, predicate.contact_geoms)


def _mark(goal: Goal, row: int, model: mujoco.MjModel, own: tuple[str, ...], others: tuple[str, ...]) -> None:
    goal.needs_contact[row] = True
    for name in own:
        goal.side[row, model.geom(name).id] |= 1
    for name in others:
        goal.side[row, model.geom(name).id] |= 2


@njit(nogil=True)
def _touching(side: Array, data: int) -> bool:
    for i in range(num_contacts(data)):
        first, second = contact_geoms(data, i)
        if first < 0 or second < 0:
            continue
        a, b = side[first], side[second]
        if (a & 1 and b & 2) or (a & 2 and b & 1):
            return True
    return False


@njit(nogil=True)
def _joints_hold(goal: Goal, g: int, qpos: Array) -> bool:
    for k in range(goal.joints.shape[1]):
        at = goal.joints[g, k]
        if at < 0:
            break
        gap = qpos[at] - goal.threshold[g]
        if not goal.above[g]:
            gap = -gap
        holds = gap > 0.0 or (goal.inclusive[g] and gap == 0.0)
        if holds != goal.need_all[g]:
            return holds
    return goal.need_all[g]


@njit(nogil=True)
def _over_site(p: Array, site: Array, axes: Array, size: Array) -> bool:
    """axes: float64 [9], row-major rotation. LIBERO multiplies by it, not by its transpose."""
    dx, dy, dz = p[0] - site[0], p[1] - site[1], p[2] - site[2]
    x = axes[0] * dx + axes[1] * dy + axes[2] * dz
    y = axes[3] * dx + axes[4] * dy + axes[5] * dz
    z = axes[6] * dx + axes[7] * dy + axes[8] * dz
    return abs(x) < size[0] and abs(y) < size[1] and size[2] - _SITE_BELOW < z < size[2] + _SITE_ABOVE


@njit(nogil=True)
def _in_box(p: Array, site: Array, axes: Array, size: Array) -> bool:
    for i in range(3):
        reach = abs(axes[3 * i] * size[0] + axes[3 * i + 1] * size[1] + axes[3 * i + 2] * size[2])
        low = site[i] - reach - (_BOX_SLACK if i == 2 else 0.0)
        if not low < p[i] < site[i] + reach:
            return False
    return True


@njit(nogil=True)
def _stacked(p: Array, base: Array, size: Array) -> bool:
    for i in range(3):
        low = base[i] - size[i] - (_BOX_SLACK if i == 2 else 0.0)
        if not low < p[i] < base[i] + size[i]:
            return False
    return p[2] > base[2]


@njit(nogil=True)
def holds(goal: Goal, g: int, data: int, qpos: Array, xpos: Array, site_xpos: Array, site_xmat: Array) -> bool:
    """Whether predicate `g` is true; the arrays are mjData's, `data` its address."""
    kind = goal.kind[g]
    if kind == _JOINTS:
        return _joints_hold(goal, g, qpos)
    p, other = xpos[goal.body[g]], goal.other[g]
    if kind == _UP:
        return p[2] >= _UP_HEIGHT
    if kind == _IN:
        return _in_box(p, site_xpos[other], site_xmat[other], goal.size[g])
    if kind == _ON:
        base = xpos[other]
        placed = base[2] <= p[2] and math.hypot(p[0] - base[0], p[1] - base[1]) < _ON_DISTANCE
    elif kind == _STACK:
        placed = _stacked(p, xpos[other], goal.size[g])
    else:
        placed = _over_site(p, site_xpos[other], site_xmat[other], goal.size[g])
    return placed and (not goal.needs_contact[g] or _touching(goal.side[g], data))


@njit(nogil=True)
def judge(goal: Goal, data: int, qpos: Array, xpos: Array, site_xpos: Array, site_xmat: Array, held: Array) -> bool:
    """Write each predicate's truth into held, bool [G]; return whether there are any and all hold."""
    every = goal.kind.shape[0] > 0
    for g in range(goal.kind.shape[0]):
        held[g] = holds(goal, g, data, qpos, xpos, site_xpos, site_xmat)
        every = every and held[g]
    return every
