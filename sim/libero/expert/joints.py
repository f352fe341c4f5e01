"""Moving the joints of fixtures: pull and push drawers, turn knobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mujoco
import numpy as np

from embodied_rl.sim.libero.expert.geometry import UP, rotation
from embodied_rl.sim.libero.expert.grasps import downward_frames, forward_frames, outward_from, plan_grasps
from embodied_rl.sim.libero.expert.hand import HALF_OPENING, hand_frame, nearest_to_down
from embodied_rl.sim.libero.expert.motions import CLOSE, OPEN, Command, Motion, approach, back_off, close_on, fly, stay
from embodied_rl.sim.libero.expert.pick import YAWS, square_yaws
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.types import Array

Done = Callable[[], bool]
_ATTEMPTS = 4
_LEAD = 0.05
"""How far (m) ahead of the hand a pull or push asks for."""
_SLIPPED = 0.03
"""So far (m) from where it was grasped a handle has slipped out of the hand."""
_PUSH_TILT = np.radians(55)
"""From down, of a hand that pushes a drawer: upright, its palm would meet the handles above."""
_TURN_STEP, _TURN_MOST = 0.08, 1.6
"""rad a control step, and at all."""


def move_joint(view: View, joint: str, direction: float, done: Done) -> Motion:
    """Move a fixture's joint up (direction 1) or down (-1) until `done`."""
    slide = view.model.joint(joint).type[0] == mujoco.mjtJoint.mjJNT_SLIDE
    for _ in range(_ATTEMPTS):
        if done():
            return
        view.look()
        yield from (_slide if slide else _turn)(view, joint, direction, done)


def opening_direction(model: mujoco.MjModel, joint: str) -> float:
    """1 or -1: the way in which a joint opens. A closed one is at the end of its range that is nearer to 0."""
    low, high = model.joint(joint).range
    return 1.0 if abs(high) > abs(low) else -1.0


def _geoms(view: View, joint: str) -> Sequence[int]:
    """Collision geoms of the body that a joint moves."""
    body = view.model.joint(joint).bodyid[0]
    return [int(g) for g in np.unique(view.surface.geom[view.surface.body == body])]


def _slide(view: View, joint: str, direction: float, done: Done) -> Motion:
    way = direction * view.data.joint(joint).xaxis
    opens = opening_direction(view.model, joint) == direction
    front = way if opens else -way
    geoms = _geoms(view, joint)
    if not geoms:
        yield from stay(view, 5, OPEN)
        return
    handle = max(geoms, key=lambda g: view.data.geom_xpos[g] @ front)
    if opens:
        yield from _pull(view, handle, way, done)
    else:
        yield from _push(view, handle, way, done)


def _pull(view: View, handle: int, way: Array, done: Done) -> Motion:
    target = view.target(np.asarray(view.surface.geom == handle))
    grasps = plan_grasps(target, forward_frames(-way), opening=HALF_OPENING)
    if not grasps:
        yield from stay(view, 5, OPEN)
        return
    grasp = grasps[0]
    yield from approach(view, grasp, None)
    yield from close_on(view, grasp)
    held = view.data.geom_xpos[handle] - view.grip
    for _ in range(90):
        if done() or np.linalg.norm(view.data.geom_xpos[handle] - view.grip - held) > _SLIPPED:
            break
        ahead = grasp.position + way * ((view.grip - grasp.position) @ way + _LEAD)
        yield Command(ahead, grasp.rotation, CLOSE)
    yield from stay(view, 4, OPEN)
    yield from back_off(view, 0.03 * UP - 0.07 * grasp.rotation[:, 2], grasp.rotation)


def _push(view: View, handle: int, way: Array, done: Done) -> Motion:
    approach, across = np.sin(_PUSH_TILT) * way - np.cos(_PUSH_TILT) * UP, np.cross(UP, way)
    frame = nearest_to_down(hand_frame(approach, across), hand_frame(approach, -across))
    start = view.data.geom_xpos[handle] - 0.06 * way + 0.005 * UP
    yield from fly(view, Command(start, frame, CLOSE), [])
    for _ in range(80):
        if done():
            break
        yield Command(start + way * ((view.grip - start) @ way + _LEAD), frame, CLOSE)
    yield from back_off(view, 0.05 * UP - 0.06 * way, frame, CLOSE, 15)


def _turn(view: View, joint: str, direction: float, done: Done) -> Motion:
    """Grasp the highest part of a knob and turn it about its axis."""
    tops = {g: float(view.points[view.surface.geom == g, 2].max()) for g in _geoms(view, joint)}
    high = [g for g, top in tops.items() if top > max(tops.values()) - 0.012]
    anchor, axis = view.data.joint(joint).xanchor.copy(), direction * view.data.joint(joint).xaxis
    grasps = []
    if high:
        target = view.target(np.isin(view.surface.geom, high))
        yaws = (*YAWS, *square_yaws(view, int(view.model.body_rootid[view.model.joint(joint).bodyid[0]])))
        grasps = plan_grasps(target, downward_frames(outward_from(view.shoulder, anchor), yaws))
    if not grasps:
        yield from stay(view, 5, OPEN)
        return
    yield from approach(view, grasps[0], None)
    yield from close_on(view, grasps[0])
    start, frame, angle = view.grip - anchor, view.hand.copy(), 0.0
    for _ in range(60):
        if done():
            break
        angle = min(angle + _TURN_STEP, _TURN_MOST)
        turned = rotation(axis, angle)
        yield Command(anchor + turned @ start, turned @ frame, CLOSE)
    yield from stay(view, 4, OPEN)
    yield from back_off(view, 0.10 * UP, view.hand.copy(), steps=15)
