"""Putting down what the hand holds: over a place, down until it touches, and let go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.sim.libero.expert.geometry import UP, flat, rotation, unit
from embodied_rl.sim.libero.expert.hand import hand_frame, hits, nearest_to_down
from embodied_rl.sim.libero.expert.motions import CLOSE, OPEN, Command, Motion, back_off, fly, stay, straight
from embodied_rl.sim.libero.expert.pick import from_under, pick, square_yaws
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.types import Array

_OVER = 0.05
"""An object is lowered from so far (m) over where it is let go."""
_HERE = (np.zeros(3),)
_TURN_COST, _MOST_TURN = 0.01, np.radians(100)
"""m of height that a turn by 1 rad is worth, and how far (rad) the wrist is turned at most."""
_MAP, _CELL = 0.3, 0.005
"""Half the side of a height map, and its cells, m."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Where a held object is let go: pose of the grip site, position of the object's origin [3], and what it costs."""

    cost: float
    position: Array
    rotation: Array
    origin: Array


def put(view: View, body: str, point: Array, spots: Sequence[Array] = _HERE, axes: Array | None = None) -> Motion:
    """Bring the held object's origin over `point` [3], lower it until it touches, and let go.

    Args:
        view: the scene.
        body: what the hand holds.
        point: on what the object is to stand.
        spots: [3] each, m from `point`, where it may stand as well.
        axes: [3, 3] of a container, whose sides the object may be turned to fit.
    """
    holding = view.holding
    if holding is None:
        return
    view.look()
    root = view.root(body)
    hang = float(view.grip[2] - view.points[view.of(root), 2].min())
    drop = min(_drops(view, body, point, spots, axes), key=lambda drop: drop.cost)
    yield from from_under(view, body, holding.rotation)
    over = Command(drop.position + _OVER * UP, drop.rotation, CLOSE)
    yield from fly(view, over, [root], hang=hang + 0.005, tolerance=0.015)
    for _ in range(50):
        away = drop.origin - view.position(body)
        if view.touches(body) or (view.grip[2] < drop.position[2] + 0.004 and flat(away) < 0.015):
            break
        lower = np.clip(drop.position[2] - view.grip[2], -0.03, 0.03) if flat(away) < 0.02 else 0.0
        yield Command(view.grip + np.array([away[0], away[1], lower]), drop.rotation, CLOSE)
    yield from stay(view, 6, OPEN, (view.grip.copy(), drop.rotation))
    yield from back_off(view, 0.10 * UP, drop.rotation)


def _drops(view: View, body: str, point: Array, spots: Sequence[Array], axes: Array | None) -> Iterator[Drop]:
    """All ways to let go: as low as neither the hand nor, where there is a choice, the object meets anything."""
    root, holding, origin = view.root(body), view.holding, view.position(body).copy()
    assert holding is not None
    mine, others = view.points[view.of(root)] - origin, view.points[~view.of(root)]
    bottom, offset = -float(mine[:, 2].min()), view.grip - origin
    around = others[np.linalg.norm(others[:, :2] - point[:2], axis=1) < 0.3]
    heights = HeightMap(around, point)
    opening = max(view.fingers, 0.012) + 0.01
    for turn in _turns(view, root, axes):
        matrix = rotation(UP, turn)
        frame, shape = matrix @ holding.rotation, mine @ matrix.T
        for spot in spots:
            place = point + spot + bottom * UP
            lift = max(0.0, heights.overlap(shape + place)) if len(spots) > 1 else 0.0
            while lift < 0.5 and hits((around - place - matrix @ offset - lift * UP) @ frame, opening, 0.005).any():
                lift += 0.01
            goal = place + matrix @ offset + lift * UP
            cost = lift + 0.3 * float(np.linalg.norm(spot)) + _TURN_COST * abs(turn)
            yield Drop(cost, goal, frame, place)


def _turns(view: View, root: int, axes: Array | None) -> list[float]:
    """Turns (rad) about the vertical of what is held: none, and to be square to the container."""
    if axes is None:
        return [0.0]
    first = square_yaws(view, root)[:1]
    here = [yaw - float(np.arctan2(-axes[0, k], axes[1, k])) for yaw in first for k in (0, 1) if abs(axes[2, k]) < 0.3]
    quarter = {round((0.5 * np.pi * k - angle + np.pi) % (2 * np.pi) - np.pi, 6) for angle in here for k in range(4)}
    return [0.0, *sorted(turn for turn in quarter if abs(turn) <= _MOST_TURN)]


class HeightMap:
    """How high points reach, over a grid around `centre`, and a cell beyond."""

    def __init__(self, points: Array, centre: Array) -> None:
        self._low = centre[:2] - _MAP
        side = round(2 * _MAP / _CELL)
        top = np.full((side + 2, side + 2), -np.inf)
        cells, inside = self._cells(points)
        np.maximum.at(top, (cells[inside, 0], cells[inside, 1]), points[inside, 2])
        shifted = [top[i : side + i, j : side + j] for i in range(3) for j in range(3)]
        top[1:-1, 1:-1] = np.max(shifted, axis=0)
        self._top = top

    def overlap(self, points: Array) -> float:
        """By how much (m) points reach below the map; -inf where they are beside everything."""
        cells, inside = self._cells(points)
        return float((self._top[cells[inside, 0], cells[inside, 1]] - points[inside, 2]).max(initial=-np.inf))

    def _cells(self, points: Array) -> tuple[Array, Array]:
        cells = np.floor((points[:, :2] - self._low) / _CELL).astype(int) + 1
        return cells, np.asarray(((cells > 0) & (cells <= round(2 * _MAP / _CELL))).all(axis=1))


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
