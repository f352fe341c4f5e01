"""Taking an object: plan a grasp, take it, see whether it comes along, else try another."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import mujoco
import numpy as np

from embodied_rl.sim.libero.expert.geometry import UP
from embodied_rl.sim.libero.expert.grasps import Frames, Grasp, downward_frames, leaning, outward_from, plan_grasps
from embodied_rl.sim.libero.expert.hand import DOWN
from embodied_rl.sim.libero.expert.motions import (
    CLOSE,
    OPEN,
    Command,
    Motion,
    approach,
    back_off,
    close_on,
    stay,
    straight,
)
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.types import Array

_ATTEMPTS = 8
_CHOICES, _CLOSE_COST = 4, 0.1
"""A grasp is drawn among the cheapest few whose cost is within _CLOSE_COST of the least."""
YAWS = tuple(np.radians(np.arange(-90, 90, 15)))
_LEAN_WAYS = tuple(np.radians(np.arange(0, 360, 60)))
_TEST_LIFT = 0.04
_MOVED = 0.005
"""An object that has moved by so much (m) since its grasp was planned needs a new one."""
_ASIDE = (0.015, 0.03, 0.045, 0.06, 0.09, 0.12, 0.15)
_DIRECTIONS = tuple(np.array([np.cos(a), np.sin(a), 0.0]) for a in np.radians(np.arange(0, 360, 30)))


def pick(
    view: View, body: str, frames: Frames | None = None, destination: Array | None = None
) -> Generator[Command, None, bool]:
    """Take an object; True when it is in the hand, by the grasp `view.holding`.

    Args:
        view: the scene.
        body: the object.
        frames: hands to try; by default ones that point down, square to the object where it is angular.
        destination: [3], about where its origin is to go; the grasp is one with which the arm reaches there.
    """
    view.holding = None
    root = view.root(body)
    missed: list[Grasp] = []
    for _ in range(_ATTEMPTS):
        view.look()
        grasp, there = choose_grasp(view, body, frames, missed, destination), view.position(body).copy()
        if grasp is None:
            missed = []
            yield from stay(view, 10, OPEN, (view.grip + 0.03 * UP, DOWN))
            continue
        yield from approach(view, grasp, root)
        if float(np.linalg.norm(view.position(body) - there)) > _MOVED:
            continue  # it was still falling, or was touched
        yield from close_on(view, grasp)
        yield from from_under(view, body, grasp.rotation)
        before, start = float(view.position(body)[2]), float(view.grip[2])
        up = Command(view.grip + _TEST_LIFT * UP, grasp.rotation, CLOSE)
        yield from straight(view, up, tolerance=0.01, steps=12)
        if view.position(body)[2] - before > 0.4 * (view.grip[2] - start):
            view.holding = grasp
            return True
        missed.append(grasp)
        yield from back_off(view, 0.06 * UP, grasp.rotation, steps=12)
    return False


def choose_grasp(
    view: View, body: str, frames: Frames | None, avoid: Sequence[Grasp], destination: Array | None
) -> Grasp | None:
    """One of the best free grasps of an object, drawn at random; None without any."""
    carry = None if destination is None else destination - view.position(body)
    target = view.target(view.of(view.root(body)), carry)
    outward = outward_from(view.shoulder, view.position(body))
    yaws = (*YAWS, *square_yaws(view, view.root(body)))
    wanted = downward_frames(outward, yaws) if frames is None else frames
    found = plan_grasps(target, wanted, avoid=avoid, limit=_CHOICES)
    if not found and frames is None:  # in tight places: lean any way
        leans = downward_frames(outward, yaws, ((np.eye(3), 0.0), *leaning(outward, _LEAN_WAYS)))
        found = plan_grasps(target, leans, avoid=avoid, limit=_CHOICES)
    close = [grasp for grasp in found if grasp.cost < found[0].cost + _CLOSE_COST]
    return close[int(view.draws.integers(len(close)))] if close else None


def square_yaws(view: View, root: int) -> list[float]:
    """Turns (rad) of DOWN that open along a horizontal side of the tree's biggest box."""
    model = view.model
    geoms = [g for g in np.unique(view.surface.geom[view.of(root)]) if model.geom_type[g] == mujoco.mjtGeom.mjGEOM_BOX]
    if not geoms:
        return []
    axes = view.data.geom_xmat[max(geoms, key=lambda g: np.prod(model.geom_size[g]))].reshape(3, 3)
    return [float(np.arctan(-axes[0, k] / axes[1, k])) for k in range(3) if abs(axes[2, k]) < 0.3 and axes[1, k] != 0.0]


def from_under(view: View, body: str, rotation: Array) -> Motion:
    """Sideways with the object in the hand, where something hangs over it, until nothing does."""
    root, here = view.root(body), view.position(body).copy()
    view.look()
    mine = view.points[view.of(root)]
    low = float(mine[:, 2].min())
    reach = float(np.linalg.norm(mine[:, :2] - here[:2], axis=1).max()) + 0.005
    if not view.overhung(here, reach, low, root):
        return
    for far in _ASIDE:
        for direction in _DIRECTIONS:
            if not view.overhung(here + far * direction, reach, low, root):
                yield from straight(view, Command(view.grip + far * direction, rotation, CLOSE), steps=20)
                return
