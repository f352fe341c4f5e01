"""Putting down what the hand holds: over a place, down until it touches, and let go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embodied_rl.sim.libero.expert.geometry import UP, flat, rotation, unit
from embodied_rl.sim.libero.expert.hand import hand_frame, hits, nearest_to_down
from embodied_rl.sim.libero.expert.motions import CLOSE, OPEN, Command, Motion, back_off, fly, stay, straight
from embodied_rl.sim.libero.expert.pick import from_under, pick
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.types import Array

_OVER = 0.05
"""An object is lowered from so far (m) over where it is let go."""
_HERE = (np.zeros(3),)


def put(view: View, body: str, point: Array, spots: Sequence[Array] = _HERE) -> Motion:
    """Bring the held object's origin over `point` [3], lower it until it touches, and let go.

    spots: [3] each, m from `point`, where it may go as well; the one where it gets lowest, and nearest, is taken.
    """
    holding = view.holding
    if holding is None:
        return
    view.look()
    root = view.root(body)
    mine = view.points[view.of(root)]
    low, origin = float(mine[:, 2].min()), view.position(body).copy()
    bottom, hang = float(origin[2]) - low, float(view.grip[2]) - low
    spot, goal = min(
        ((spot, _release(view, body, point + spot, bottom, len(spots) == 1)) for spot in spots),
        key=lambda choice: (choice[1][2] + 0.3 * float(np.linalg.norm(choice[0])), *choice[0]),
    )
    yield from from_under(view, body, holding.rotation)
    over = Command(goal + _OVER * UP, holding.rotation, CLOSE)
    yield from fly(view, over, [root], hang=hang + 0.005, tolerance=0.015)
    rest = point + spot + bottom * UP
    for _ in range(50):
        away = rest - view.position(body)
        if view.touches(body) or (view.grip[2] < goal[2] + 0.004 and flat(away) < 0.015):
            break
        lower = np.clip(goal[2] - view.grip[2], -0.03, 0.03) if flat(away) < 0.02 else 0.0
        yield Command(view.grip + (away[0], away[1], lower), holding.rotation, CLOSE)
    yield from stay(view, 6, OPEN, (view.grip.copy(), holding.rotation))
    yield from back_off(view, 0.10 * UP, holding.rotation)


def _release(view: View, body: str, spot: Array, bottom: float, alone: bool) -> Array:
    """Where the grip site lets go [3]: as low as neither the hand nor, in a container, the object touches anything."""
    root, holding = view.root(body), view.holding
    assert holding is not None
    origin = view.position(body)
    mine, others = view.points[view.of(root)], view.points[~view.of(root)]
    aside = np.linalg.norm(others[:, :2] - spot[:2], axis=1)
    reach = float(np.linalg.norm(mine[:, :2] - origin[:2], axis=1).max()) + 0.004
    around, beside = others[aside < 0.3], others[aside < reach, 2]
    offset = view.grip - origin
    goal = spot + bottom * UP + offset
    opening = max(view.fingers, 0.012) + 0.01
    for _ in range(50):
        free = alone or not (beside > goal[2] - offset[2] - bottom + 0.008).any()
        if free and not hits((around - goal) @ holding.rotation, opening, 0.005).any():
            break
        goal = goal + 0.01 * UP
    return goal


def lay(view: View, body: str, along: Array, at: Array) -> Motion:
    """Lay a long object on a slanted shelf, its foot down at `at` [3], its upper end along `along` [3]."""
    across = unit(np.cross(UP, along))
    frame = nearest_to_down(hand_frame(-UP, across), hand_frame(-UP, -across))
    if not (yield from pick(view, body, [(frame, 0.0)])) or view.holding is None:
        return
    turn = rotation(across, float(np.arccos(along @ UP)))
    normal = unit(UP - along * (along @ UP))
    held, laid = view.holding.rotation, turn @ view.holding.rotation
    goal = at + 0.03 * along + 0.021 * normal + turn @ (view.grip - view.position(body))
    yield from back_off(view, max(0.0, float(goal[2] - view.grip[2]) + 0.10) * UP, held, CLOSE, 30)
    over = Command(goal + 0.08 * normal, laid, CLOSE)
    yield from straight(view, over, tolerance=0.012, turn_tolerance=0.1, steps=90)

    def down() -> bool:
        return view.touches(body) and float(np.linalg.norm(goal - view.grip)) < 0.02

    yield from straight(view, Command(goal, laid, CLOSE), steps=40, until=down)
    yield from stay(view, 8, OPEN)
    yield from back_off(view, 0.02 * normal - 0.08 * laid[:, 2], laid)
