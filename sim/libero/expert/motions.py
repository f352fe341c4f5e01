"""Motions of the hand: generators that say, one control step at a time, where it should be.

A motion looks at the true state before each step, so it goes on from wherever a push has left the hand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np

from embodied_rl.sim.libero.expert.geometry import angle_between, flat
from embodied_rl.sim.libero.expert.grasps import Grasp
from embodied_rl.sim.libero.expert.hand import HALF_OPENING, TIP
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.types import Array

OPEN, CLOSE, KEEP = -1.0, 1.0, 0.0
"""Gripper commands; KEEP leaves the fingers where they are."""
_LOOK_EVERY = 5
_STILL, _STILL_STEPS = 0.0015, 10
_CLOSING_STEPS, _FINGERS_STILL = 12, 0.0003
"""Fingers that move less (m a step) have closed."""


class Command(NamedTuple):
    """Where the grip site should go: position [3] (m), rotation [3, 3], and what the gripper does."""

    position: Array
    rotation: Array
    gripper: float


Motion = Generator[Command, None, None]


def straight(
    view: View,
    goal: Command,
    *,
    tolerance: float = 0.006,
    turn_tolerance: float = 0.06,
    steps: int = 60,
    stride: float = 1.0,
    until: Callable[[], bool] = lambda: False,
) -> Motion:
    """On a line, until the hand is there (within m and rad), `until` holds or the steps are used up.

    stride: m ahead of the hand that a command asks for at most.
    """
    for _ in range(steps):
        away = goal.position - view.grip
        far = float(np.linalg.norm(away))
        if until() or (far < tolerance and angle_between(goal.rotation, view.hand) < turn_tolerance):
            return
        yield goal._replace(position=view.grip + away * min(1.0, stride / max(far, 1e-9)))


def stay(view: View, steps: int, gripper: float, at: tuple[Array, Array] | None = None) -> Motion:
    """Hold still where the hand is, or at a position and rotation."""
    position, rotation = (view.grip.copy(), view.hand.copy()) if at is None else at
    for _ in range(steps):
        yield Command(position, rotation, gripper)


def back_off(view: View, move: Array, rotation: Array, gripper: float = OPEN, steps: int = 20) -> Motion:
    """By `move` [3] (m) from here, roughly."""
    yield from straight(view, Command(view.grip + move, rotation, gripper), tolerance=0.02, steps=steps)


def fly(
    view: View, goal: Command, skip: Sequence[int], *, hang: float = TIP, tolerance: float = 0.01, steps: int = 150
) -> Motion:
    """Over everything to above `goal`, then down to it.

    skip: trees that are no obstacle. hang: m that the hand, or what it holds, reaches below the grip site.
    """
    before, still = view.grip + 1.0, 0
    for step in range(steps):
        if step % _LOOK_EVERY == 0:
            view.look()  # things may still be falling
        away = goal.position - view.grip
        aside, turn = flat(away), angle_between(goal.rotation, view.hand)
        if aside < tolerance and abs(away[2]) < tolerance and turn < 0.08:
            return
        height = goal.position[2]
        if aside > 0.02:
            height = max(view.clearance(view.grip, goal.position, skip) + hang, height)
        aim = goal.position.copy()
        aim[2] += np.clip(3.0 * (aside - 0.015), 0.0, height - aim[2])
        # rise first: no way aside while the hand is far below its path
        aim[:2] = view.grip[:2] + away[:2] * np.clip(1.5 - (aim[2] - view.grip[2]) / 0.04, 0.0, 1.0)
        moved = float(np.linalg.norm(view.grip - before))
        still = still + 1 if moved < _STILL and step > 5 and turn < 0.3 else 0
        if still > _STILL_STEPS:
            return  # as near as the arm gets
        before = view.grip.copy()
        yield goal._replace(position=aim)


def approach(view: View, grasp: Grasp, root: int | None) -> Motion:
    """Over everything to a place just before a grasp. root: the tree to be grasped, where it is no obstacle."""
    for _ in range(20):
        if grasp.opening > HALF_OPENING or view.fingers <= grasp.opening:
            break
        yield Command(view.grip.copy(), view.hand.copy(), CLOSE)
    upright = grasp.rotation[2, 2] < -0.8
    before = grasp.position - (0.045 if upright else 0.09) * grasp.rotation[:, 2]
    skip = [root] if upright and root is not None else []
    yield from fly(view, Command(before, grasp.rotation, _arriving(grasp)), skip)


def close_on(view: View, grasp: Grasp) -> Motion:
    """From just before a grasp onto it, and close the fingers."""
    at = Command(grasp.position, grasp.rotation, _arriving(grasp))
    yield from straight(view, at, tolerance=0.004, steps=40, stride=0.04)
    before = view.fingers
    for step in range(_CLOSING_STEPS):
        yield at._replace(gripper=CLOSE)
        if step > 2 and abs(view.fingers - before) < _FINGERS_STILL:
            return
        before = view.fingers


def _arriving(grasp: Grasp) -> float:
    return KEEP if grasp.opening <= HALF_OPENING else OPEN
