"""Where the facts of a task's goal happen in a model: which thing must move, and how far it still is."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from embodied_rl.sim.mujoco.env import GRIP_SITE
from embodied_rl.sim.mujoco.task import In, JointRange, MujocoTask, On, OnSite, Predicate, Stack, Up
from embodied_rl.types import Array

KINDS: tuple[type, ...] = (On, OnSite, In, JointRange, Up, Stack)
"""Kinds of predicates, in the order of a state's one-hot."""
UP_HEIGHT = 1.0
"""From this height (m) an origin is up."""


@dataclass(frozen=True, slots=True)
class Distances:
    """How far one fact of a goal is from being held.

    Args:
        reach: float64 [3], from the grip site to the thing that must move (m).
        place: float64 [3], from that thing to where it must be (m); zeros for a joint.
        gap: how far a joint must still move (m or rad), negative beyond; 0 for a relation.
        share: `gap` as a share of the joint's range, in [0, 1].
    """

    reach: Array
    place: Array
    gap: float
    share: float


class Facts:
    """The goal of `task` in `model`: one `Distances` a predicate, read from mjData and never written.

    Positions of bodies and sites are those that the last mj_step left, one substep (2 ms) old, as for the goal itself.
    What a hand moves at a joint is the site '<body>_tip' of the joint's body, else the body's centre of mass.
    """

    def __init__(self, task: MujocoTask, model: mujoco.MjModel) -> None:
        self.kind = [KINDS.index(type(predicate)) for predicate in task.goal]
        self.bodies = [_body(predicate, model) for predicate in task.goal]
        self.joints = [_joints(predicate, model) for predicate in task.goal]
        self._goal, self._model = task.goal, model
        self._grip = int(model.site(GRIP_SITE).id)
        self._tips = [_tip(model, joints) for joints in self.joints]
        self._addresses = [[int(model.jnt_qposadr[joint]) for joint in joints] for joints in self.joints]
        self._targets = [_target(predicate, model) for predicate in task.goal]
        self.target_bodies = [_target_body(predicate, model) for predicate in task.goal]

    def __len__(self) -> int:
        return len(self._goal)

    def distances(self, data: mujoco.MjData, fact: int) -> Distances:
        """Of predicate `fact` in the state of `data`."""
        predicate, hand = self._goal[fact], data.site_xpos[self._grip]
        if isinstance(predicate, JointRange):
            gap, share = self._gap(predicate, data.qpos, fact)
            tip = self._tips[fact]
            where = data.xipos[self.bodies[fact]] if tip is None else data.site_xpos[tip]
            return Distances(where - hand, np.zeros(3), gap, share)
        where = data.xpos[self.bodies[fact]]
        return Distances(where - hand, self._aim(predicate, data, fact) - where, 0.0, 0.0)

    def _aim(self, predicate: Predicate, data: mujoco.MjData, fact: int) -> Array:
        if isinstance(predicate, Up):
            return np.array([*data.xpos[self.bodies[fact]][:2], UP_HEIGHT])
        target = self._targets[fact]
        if isinstance(predicate, On | Stack):
            return data.xpos[target]
        if isinstance(predicate, In):
            return data.site_xpos[target]
        return data.site_xpos[target] + np.array([0.0, 0.0, self._model.site_size[target][2]])

    def _gap(self, predicate: JointRange, qpos: Array, fact: int) -> tuple[float, float]:
        """The joint that decides: the farthest if all must hold, else the nearest."""
        way = 1.0 if predicate.above else -1.0
        gaps = []
        for joint, at in zip(self.joints[fact], self._addresses[fact], strict=True):
            gap = way * (predicate.threshold - float(qpos[at]))
            low, high = self._model.jnt_range[joint] if self._model.jnt_limited[joint] else (0.0, 1.0)
            gaps.append((gap, min(max(gap / (high - low), 0.0), 1.0)))
        return (max if predicate.need_all else min)(gaps)


def _body(predicate: Predicate, model: mujoco.MjModel) -> int:
    """What must move: an object, or the part at the predicate's first joint."""
    if isinstance(predicate, JointRange):
        return int(model.jnt_bodyid[model.joint(predicate.joints[0]).id])
    return int(model.body(predicate.body).id)


def _joints(predicate: Predicate, model: mujoco.MjModel) -> list[int]:
    return [int(model.joint(name).id) for name in predicate.joints] if isinstance(predicate, JointRange) else []


def _tip(model: mujoco.MjModel, joints: list[int]) -> int | None:
    """The site at which a joint's part is moved, if the model marks it."""
    if not joints:
        return None
    name = f"{model.body(int(model.jnt_bodyid[joints[0]])).name}_tip"
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name)
    return None if found < 0 else int(found)


def _target_body(predicate: Predicate, model: mujoco.MjModel) -> int:
    """The body on or in which the object must be, 0 (the world) without one."""
    target = _target(predicate, model)
    if target < 0:
        return 0
    return target if isinstance(predicate, On | Stack) else int(model.site_bodyid[target])


def _target(predicate: Predicate, model: mujoco.MjModel) -> int:
    """Id of the body or site where the object must be, -1 without one."""
    if isinstance(predicate, On | Stack):
        return int(model.body(predicate.other).id)
    return int(model.site(predicate.site).id) if isinstance(predicate, OnSite | In) else -1
