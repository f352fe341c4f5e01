"""Grasps of an object from its surface points: hand poses whose pads close squarely and that touch nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from embodied_rl.sim.libero.expert.geometry import UP, rotation, unit
from embodied_rl.sim.libero.expert.hand import (
    DOWN,
    OPENING,
    PAD_TIP,
    PAD_TOP,
    PAD_WIDTH,
    PALM,
    TIP,
    hand_frame,
    hits,
    nearest_to_down,
    stretch,
)
from embodied_rl.types import Array

Frames = Sequence[tuple[Array, float]]
"""Hand rotations [3, 3] to try, each with its cost."""
_NEAR = 0.36
"""Points further (m) from the object's middle can't be in the hand's way."""
_SWEEP = 0.10
"""What stands in the last so many m of the hand's way counts as well."""
_MARGIN, _TIGHT_COST = 0.003, 0.3
"""Room (m) to leave around the hand, and what it costs to do without."""
_SQUARE = 0.55
"""Least area-weighted cosine between the pads' push and the faces that they press on."""
_GAP = 0.012
"""Points on a line that lie further apart (m) belong to different parts."""
_PLAY = 0.008
"""An object must be narrower than the open hand by this much (m)."""
_EASY_STRETCH = 0.62
_RIM_DEPTH = 0.011
"""How far (m) below its edge a wall is best held: there it is straight, and the pads reach it whole."""
_SAME_PLACE, _SAME_WAY = 0.012, 2.9


@dataclass(frozen=True, slots=True)
class Grasp:
    """position [3] (m) and rotation [3, 3] of the grip site; opening of each finger before it closes (m)."""

    cost: float
    position: Array
    rotation: Array
    opening: float

    def like(self, other: Grasp) -> bool:
        """Whether two grasps are nearly the same."""
        near = float(np.linalg.norm(self.position - other.position)) < _SAME_PLACE
        return near and float(np.trace(self.rotation.T @ other.rotation)) > _SAME_WAY


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be grasped, and what stands around it.

    Args:
        points, normals, areas: float64 [n, 3], [n, 3], [n], of the object's surface.
        others: float64 [m, 3], of everything else.
        ground: height (m) that the fingertips stay above.
        shoulder: float64 [3], of the arm.
        carry: float64 [3], m, by which the object is to be carried: the arm must reach there too.
    """

    points: Array
    normals: Array
    areas: Array
    others: Array
    ground: float
    shoulder: Array
    carry: Array = field(default_factory=lambda: np.zeros(3))


def plan_grasps(
    target: Target, frames: Frames, *, opening: float = OPENING, avoid: Sequence[Grasp] = (), limit: int = 1
) -> list[Grasp]:
    """The cheapest grasps that are free, up to `limit`, cheapest first and all different.

    Args:
        target: the object and its surroundings.
        frames: hand rotations to try.
        opening: of each finger as the hand arrives, m.
        avoid: no grasp like these.
        limit: how many.
    """
    centre = _centre(target.points)
    near = target.others[np.linalg.norm(target.others - centre, axis=1) < _NEAR]
    candidates = [grasp for frame, cost in frames for grasp in _candidates(target, frame, cost, opening)]
    found: list[Grasp] = []
    for grasp in sorted(candidates, key=lambda grasp: grasp.cost):
        if sum(other.cost <= grasp.cost for other in found) >= limit:
            break
        if any(grasp.like(other) for other in (*avoid, *found)):
            continue
        if hits((target.points - grasp.position) @ grasp.rotation, opening, 0.001).any():
            continue
        around = (near - grasp.position) @ grasp.rotation
        if hits(around, opening, 0.0, _SWEEP).any():
            continue
        tight = hits(around, opening, _MARGIN, _SWEEP).any()
        found.append(replace(grasp, cost=grasp.cost + _TIGHT_COST) if tight else grasp)
    return sorted(found, key=lambda grasp: grasp.cost)[:limit]


def downward_frames(outward: Array, yaws: Sequence[float], leans: Frames | None = None) -> Frames:
    """Hands that point down, turned by `yaws` (rad) from DOWN, and the same leaning over.

    Args:
        outward: horizontal direction [3] from the shoulder to the object.
        yaws: rad; the smaller the turn, the cheaper.
        leans: rotations of the whole hand with their costs; by default none, and 25 degrees outwards, which gains
            reach.
    """
    if leans is None:
        leans = ((np.eye(3), 0.0), *leaning(outward, (0.0,)))
    return [(lean @ rotation(UP, yaw) @ DOWN, cost + 0.15 * abs(yaw)) for lean, cost in leans for yaw in yaws]


def leaning(outward: Array, ways: Sequence[float], angle: float = np.radians(25)) -> Frames:
    """Rotations that lean a hand by `angle` towards `outward` turned by `ways` (rad), with their costs."""
    turned = [rotation(UP, way) @ outward for way in ways]
    return [(rotation(np.cross(-UP, direction), angle), 0.4 * angle) for direction in turned]


def forward_frames(forward: Array, angles: Sequence[float] = (90, 75, 60, 45)) -> Frames:
    """Hands that point along `forward` (horizontal, [3]) by `angles` (degrees) from down; they open up and down, or
    level."""
    found = []
    for angle in np.radians(angles):
        approach = np.sin(angle) * forward - np.cos(angle) * UP
        for opening in (np.cos(angle) * forward + np.sin(angle) * UP, np.cross(UP, forward)):
            best = nearest_to_down(hand_frame(approach, opening), hand_frame(approach, -opening))
            found.append((best, 0.2 * float(angle)))
    return found


def outward_from(shoulder: Array, point: Array) -> Array:
    """Horizontal direction [3] from the shoulder to a point."""
    return unit((point - shoulder) * (1.0, 1.0, 0.0))


def _centre(points: Array) -> Array:
    return np.asarray(0.5 * (points.min(axis=0) + points.max(axis=0)))


def _candidates(target: Target, frame: Array, cost: float, opening: float) -> Iterator[Grasp]:
    """Every place where this hand could close on a part of the object; whether it is free is not looked at."""
    centre = _centre(target.points)
    local = (target.points - centre) @ frame
    square = np.abs(target.normals @ frame[:, 0])
    top = local[:, 2].min()
    for y in np.arange(local[:, 1].min() + 0.004, local[:, 1].max(), 0.006):
        slab = np.flatnonzero(np.abs(local[:, 1] - y) < PAD_WIDTH - 0.001)
        slab = slab[np.argsort(local[slab, 0], kind="stable")]
        for z in np.arange(top - 0.002, min(local[:, 2].max(), top - PALM), 0.005):
            zone = slab[(local[slab, 2] > z + PAD_TOP) & (local[slab, 2] < z + PAD_TIP)]
            for part in _parts(local[zone, 0]):
                x, ids = local[zone[part], 0], zone[part]
                width = x[-1] - x[0]
                if len(part) < 4 or width > 2 * opening - _PLAY:
                    continue
                quality = min(_pressing(x < x[0] + 0.0025, ids, square, target.areas),
                              _pressing(x > x[-1] - 0.0025, ids, square, target.areas))  # fmt: skip
                if quality < _SQUARE:
                    continue
                at = np.array([0.5 * (x[0] + x[-1]), y, z])
                position = centre + frame @ at
                if _lowest(position, frame, opening) < target.ground + 0.002:
                    continue
                aside = 6.0 * float(np.hypot(*(position - centre)[:2])) - 0.5 * min(len(part), 30) / 30
                far = max(stretch(position + way, frame, target.shoulder) for way in (0.0, target.carry))
                strain = 10.0 * max(0.0, far - _EASY_STRETCH)
                total = cost + aside + 2.0 * (1.0 - quality) + strain + _depth_cost(at, width, top)
                yield Grasp(float(total), position, frame, opening)


def _parts(x: Array) -> list[Array]:
    """Indices of sorted x [n], split at gaps."""
    if not len(x):
        return []
    return np.split(np.arange(len(x)), np.flatnonzero(np.diff(x) > _GAP) + 1)


def _pressing(end: Array, ids: Array, square: Array, areas: Array) -> float:
    """How squarely a pad presses on the points at one end."""
    return float(np.average(square[ids[end]], weights=areas[ids[end]]))


def _lowest(position: Array, frame: Array, opening: float) -> float:
    """Height (m) of the fingertips."""
    return float(position[2] + min(0.0, frame[2, 2]) * TIP - abs(frame[2, 0]) * (opening + 0.02))


def _depth_cost(at: Array, width: float, top: float) -> float:
    if abs(at[0]) > 0.015:  # aside of the middle: a wall
        return 10.0 * width + 10.0 * abs(at[2] - top - _RIM_DEPTH)
    return 2.0 * abs(float(at[2]))
