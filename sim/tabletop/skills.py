"""What the scripted expert can do: pick and place, pull or push a drawer, turn a knob.

A skill looks at the true state each control step and answers with the point where the grip site should go next and a
gripper command; it starts over by itself when an object was missed or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mujoco
import numpy as np

from embodied_rl.types import Array

OPEN, CLOSE = -1.0, 1.0
_TIP = 0.009
"""The fingers reach this far (m) below the grip site."""
_PALM, _FINGERS, _TALL = 0.085, 0.055, 0.06
"""Half widths (m) of the palm and of the open fingers; things higher than _TALL (m) stand in the palm's way."""


@dataclass(frozen=True, slots=True)
class Move:
    """target: float64 [3], the point (m, world) for the grip site. grip: OPEN or CLOSE."""

    target: Array
    grip: float


class Skill(Protocol):
    """One subgoal."""

    finished: bool

    def reset(self) -> None:
        """Forget the last episode."""
        ...

    def next_move(self, data: mujoco.MjData) -> Move:
        """Look, decide, and set `finished` once the subgoal is reached and the hand is clear of it."""
        ...


def _cone(flat_distance: float, free: float, slope: float, height: float) -> float:
    """Height to keep while `flat_distance` (m) away: 0 within `free`, then rising by `slope` up to `height`."""
    return float(np.clip(slope * (flat_distance - free), 0.0, height))


def _flat(vector: Array) -> float:
    return float(np.hypot(vector[0], vector[1]))


@dataclass(slots=True)
class Place:
    """Where an object goes: over body or site `anchor` by `raise_by` (m), and beside its origin by `aside` (m) along x.

    clearance: height (m) to keep on the way.
    """

    anchor: str
    is_site: bool
    raise_by: float
    clearance: float
    aside: float = 0.0

    def point(self, data: mujoco.MjData) -> Array:
        """float64 [3], world: where the bottom of the object ends up."""
        at = data.site(self.anchor).xpos if self.is_site else data.body(self.anchor).xpos
        return np.array([at[0] + self.aside, at[1], at[2] + self.raise_by])


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A body to keep the hand away from, with its reach to the side and its height (m)."""

    body: str
    radius: float
    height: float


class PickPlace:
    """Take `body` and put it at `place`.

    bottom, top, grip_height, rim: as in ObjectType. others: what to keep away from when choosing the rim's side.
    """

    def __init__(
        self,
        body: str,
        place: Place,
        *,
        bottom: float,
        top: float,
        grip_height: float,
        rim: float,
        others: tuple[Obstacle, ...],
        prefer_side: float = 0.0,
    ) -> None:
        self._body, self._place, self._others = body, place, others
        self._bottom, self._top, self._grip_height, self._rim = bottom, top, grip_height, rim
        self._prefer_side = prefer_side
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.finished = False
        self._phase = "reach"
        self._steps = 0
        self._side = 0.0

    def _enter(self, phase: str) -> None:
        self._phase, self._steps = phase, 0

    def next_move(self, data: mujoco.MjData) -> Move:
        """See Skill."""
        self._steps += 1
        grip = data.site("gripper0_grip_site").xpos
        body = data.body(self._body).xpos
        if self._side == 0.0:
            self._side = self._prefer_side or self._free_side(data, body)
        hold = body + np.array([0.0, self._side * self._rim, self._grip_height])
        away = hold - grip
        in_grip = abs(away[0]) < 0.022 and abs(away[1]) < 0.03 and abs(away[2]) < 0.022
        if self._phase in ("close", "carry") and not in_grip:
            self._enter("reach")
        if self._phase == "reach":
            return self._reach(hold, away)
        if self._phase == "close":
            if self._steps > 6:
                self._enter("carry")
            return Move(hold, CLOSE)
        if self._phase == "carry":
            return self._carry(data, grip, body)
        return self._let_go(data, grip, body)

    def _reach(self, hold: Array, away: Array) -> Move:
        flat = _flat(away)
        if flat < 0.009 and abs(away[2]) < 0.008:
            self._enter("close")
            return Move(hold, CLOSE)
        over = self._top - self._grip_height + _TIP
        target = hold.copy()
        target[2] += _cone(flat, 0.010, 3.5, max(over + 0.02, 0.085))
        return Move(target, OPEN)

    def _carry(self, data: mujoco.MjData, grip: Array, body: Array) -> Move:
        goal = self._place.point(data)
        goal[2] += self._bottom
        away = goal - body
        flat = _flat(away)
        if flat < 0.012 and abs(away[2]) < 0.010:
            self._enter("release")
            return Move(grip.copy(), OPEN)
        step = away.copy()
        step[2] += _cone(flat, 0.012, 2.5, self._place.clearance)
        # rise first: no sideways motion while the object is far below its path
        step[:2] *= float(np.clip(1.6 - step[2] / 0.04, 0.0, 1.0))
        return Move(grip + step, CLOSE)

    def _let_go(self, data: mujoco.MjData, grip: Array, body: Array) -> Move:
        target = grip.copy()
        if self._phase == "release":
            if self._steps > 6:
                self._enter("retreat")
            return Move(target, OPEN)
        target[2] += 0.08
        clear = body[2] + self._top + _TIP + 0.03
        if grip[2] > clear:
            if _flat(self._place.point(data) - body) > 0.028:
                self._enter("reach")
            else:
                self.finished = True
        elif self._steps > 25:
            self._enter("reach")
        return Move(target, OPEN)

    def _free_side(self, data: mujoco.MjData, body: Array) -> float:
        """The side (+1 or -1 along y) of the rim with more room for the hand; 1 where there is no rim to choose."""
        if self._rim == 0.0 or not self._others:
            return 1.0
        room = []
        for side in (1.0, -1.0):
            hand = body + np.array([0.0, side * self._rim, 0.0])
            room.append(
                min(
                    _flat(data.body(o.body).xpos - hand) - o.radius - (_PALM if o.height > _TALL else _FINGERS)
                    for o in self._others
                )
            )
        return 1.0 if room[0] >= room[1] else -1.0


class Slide:
    """Move a drawer by its bar: hook it with closed fingers and pull it open, or push it shut from outside.

    joint: its slide joint. tip: site in the middle of the bar. until: the joint value (m) that will do.
    """

    def __init__(self, joint: str, tip: str, *, opening: bool, until: float) -> None:
        self._joint, self._tip, self._opening, self._until = joint, tip, opening, until
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.finished = False
        self._moving = False

    def next_move(self, data: mujoco.MjData) -> Move:
        """See Skill."""
        grip = data.site("gripper0_grip_site").xpos
        tip = data.site(self._tip)
        outwards = tip.xmat.reshape(3, 3)[:, 1]
        position = float(data.joint(self._joint).qpos[0])
        if position > self._until if self._opening else position < self._until:
            self.finished = grip[2] > tip.xpos[2] + 0.06
            return Move(grip + np.array([0.0, 0.0, 0.08]), CLOSE)
        start = tip.xpos + outwards * (-0.024 if self._opening else 0.030) - np.array([0.0, 0.0, 0.006])
        away = start - grip
        if not self._moving and _flat(away) < 0.008 and abs(away[2]) < 0.010:
            self._moving = True
        beside = float(away @ outwards)  # > 0: the grip site is nearer to the cabinet than `start`
        across = float(np.linalg.norm(away[:2] - beside * outwards[:2]))
        if self._moving and (across > 0.03 or abs(away[2]) > 0.025 or abs(beside) > 0.028):
            self._moving = False
        if self._moving:
            return Move(start + outwards * (0.06 if self._opening else -0.06), CLOSE)
        target = start.copy()
        target[2] += _cone(_flat(away), 0.006, 10.0, 0.09)  # steep: pressing on an edge would jam
        return Move(target, CLOSE)


class Turn:
    """Turn a lever on a vertical hinge by pushing its end with closed fingers.

    joint: its hinge. tip: site where to push. direction: +1 counter-clockwise. until: the joint value (rad) that will
    do.
    """

    def __init__(self, joint: str, tip: str, *, direction: float, until: float) -> None:
        self._joint, self._tip, self._direction, self._until = joint, tip, direction, until
        self.reset()

    def reset(self) -> None:
        """Start over."""
        self.finished = False
        self._moving = False

    def next_move(self, data: mujoco.MjData) -> Move:
        """See Skill."""
        grip = data.site("gripper0_grip_site").xpos
        tip = data.site(self._tip)
        push = self._direction * tip.xmat.reshape(3, 3)[:, 0]
        angle = self._direction * float(data.joint(self._joint).qpos[0])
        if angle > self._direction * self._until:
            self.finished = grip[2] > tip.xpos[2] + 0.06
            return Move(grip + np.array([0.0, 0.0, 0.08]), CLOSE)
        start = tip.xpos - push * 0.030 + np.array([0.0, 0.0, 0.003])
        away = start - grip
        along = float(away @ push)
        across = float(np.linalg.norm(away[:2] - along * push[:2]))
        if not self._moving and _flat(away) < 0.012 and abs(away[2]) < 0.010:
            self._moving = True
        if self._moving and (across > 0.025 or abs(away[2]) > 0.02 or abs(along) > 0.035):
            self._moving = False
        if self._moving:
            return Move(start + push * 0.05, CLOSE)
        target = start.copy()
        target[2] += _cone(_flat(away), 0.010, 4.0, 0.09)
        return Move(target, CLOSE)
