"""Pushing what is too flat to grasp over the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from embodied_rl.sim.libero.expert.geometry import UP, flat, rotation
from embodied_rl.sim.libero.expert.hand import OPENING, TIP, hand_frame, hits, nearest_to_down, stretch
from embodied_rl.sim.libero.expert.motions import OPEN, Command, Motion, back_off, fly, straight
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.types import Array

_ATTEMPTS, _STEPS = 4, 110
_LEANS = np.radians((0, 20, 40))
_TURNS = np.radians((0, 15, -15, 30, -30, 45, -45))
_FINGERS_APART, _BEHIND, _THICK = 0.05, 0.016, 0.013
"""Half the distance of the open fingers' middles, how far behind the edge they begin, and half a finger, m."""
_LOST = 0.06


def is_flat(view: View, root: int) -> bool:
    """Whether a tree is too wide and low to be grasped."""
    sides = np.ptp(view.points[view.of(root)], axis=0)
    return bool(sides[2] < 0.03 and min(sides[:2]) > 0.1)


def push(view: View, body: str, goal: Array, done: Callable[[], bool]) -> Motion:
    """Push a round object to `goal` [3] with the open fingers astride the way."""
    for _ in range(_ATTEMPTS):
        view.look()
        start, frame = next(_free_starts(view, body, goal), next(_starts(view, body, goal)))
        yield from fly(view, Command(start - 0.12 * frame[:, 2], frame, OPEN), [])
        yield from straight(view, Command(start, frame, OPEN), tolerance=0.008, steps=40)
        way = _toward(view.position(body), goal)
        for _ in range(_STEPS):
            here = view.position(body)
            way = _toward(here, goal)
            aside = frame[:, 0] * ((view.grip - here) @ frame[:, 0])
            if done() or flat(aside) > _LOST:
                break
            aim = view.grip + 0.03 * way - 0.7 * aside
            aim[2] = start[2]
            yield Command(aim, frame, OPEN)
        yield from back_off(view, 0.08 * UP - 0.05 * way, frame)
        if done():
            return


def _toward(start: Array, end: Array) -> Array:
    way = (end - start) * (1.0, 1.0, 0.0)
    return np.asarray(way / max(flat(way), 1e-9))


def _starts(view: View, body: str, goal: Array) -> Iterator[tuple[Array, Array]]:
    """Places behind the object and hands there, which lean over it more and more."""
    here = view.position(body).copy()
    points = view.points[view.of(view.root(body))]
    radius = float(np.linalg.norm(points[:, :2] - here[:2], axis=1).max())
    behind = float(np.sqrt(max(radius**2 - _FINGERS_APART**2, 0.0))) + _BEHIND
    height = view.ground(here + 0.02 * UP) + TIP + 0.004
    for lean in _LEANS:
        for turn in _TURNS:
            way = rotation(UP, turn) @ _toward(here, goal)
            approach, across = -np.cos(lean) * UP - np.sin(lean) * way, np.cross(UP, way)
            frame = nearest_to_down(hand_frame(approach, across), hand_frame(approach, -across))
            start = here - way * (behind + _THICK * np.tan(lean))
            start[2] = height + 0.0105 * np.sin(lean)
            yield start, frame


def _free_starts(view: View, body: str, goal: Array) -> Iterator[tuple[Array, Array]]:
    """Those that the arm reaches and where the hand touches nothing else."""
    others = view.points[~view.of(view.root(body))]
    for start, frame in _starts(view, body, goal):
        reached = stretch(start, frame, view.shoulder) < 0.66
        if reached and not hits((others - start) @ frame, OPENING, 0.002, 0.05).any():
            yield start, frame
