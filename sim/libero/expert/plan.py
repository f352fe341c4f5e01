"""The scripted expert for LIBERO's tasks: it reads its plan from the task's goal and plans each motion from the model.

It knows nothing of tasks or object classes: shapes are those of the collision geoms, and the goal is the predicates
that the simulator judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.expert.geometry import Surface, rotation_vector, unit
from embodied_rl.sim.libero.expert.hand import LONGEST_STRETCH, stretch
from embodied_rl.sim.libero.expert.joints import move_joint, opening_direction
from embodied_rl.sim.libero.expert.motions import OPEN, Command, Motion, stay
from embodied_rl.sim.libero.expert.pick import pick
from embodied_rl.sim.libero.expert.place import lay, put
from embodied_rl.sim.libero.expert.push import is_flat, push
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.sim.mujoco.task import In, JointRange, MujocoTask, On, OnSite, Predicate, Stack
from embodied_rl.types import Array

_STEP, _TURN_STEP = 0.05, 0.5
"""Metres and radians that an action of 1 asks for."""
_GAIN = 0.7
"""Share of the way to its target that a command asks for. Well under 1, so that the command tells how far it still is:
bang-bang commands are quicker, and far harder to imitate."""
_TURN_SLACK = 0.03
"""Rotation error (rad) that is left alone."""
_DRAWER_OPEN = 0.85
"""Share of its way that a drawer is opened before something goes into it."""
_IDLE = 5


class Expert:
    """Solves one episode of `task`, one control step at a time.

        expert = Expert(task, model, Surface(model), draws)
        action = expert.act(data, held)    # float64 [7] in [-1, 1]

    Args:
        task: its goal is what there is to do.
        model: the task's physics model.
        surface: of that model; it may serve many episodes.
        draws: decides among grasps that are about as good.
    """

    def __init__(self, task: MujocoTask, model: mujoco.MjModel, surface: Surface, draws: np.random.Generator) -> None:
        for predicate in task.goal:
            if not isinstance(predicate, On | OnSite | In | JointRange | Stack):
                raise UserError(f"the scripted expert has no skill for {type(predicate).__name__} in '{task.name}'")
        self._goal, self._model, self._surface, self._draws = task.goal, model, surface, draws
        self._held = np.zeros(len(task.goal), np.bool_)
        self._episode: tuple[View, Motion] | None = None

    def act(self, data: mujoco.MjData, held: Array) -> Array:
        """The next action: position and rotation deltas and gripper.

        Args:
            data: MuJoCo's state; always the same object in an episode.
            held: bool [G], which predicates of the goal hold now.

        Returns:
            float64 [7] in [-1, 1].
        """
        self._held = held
        if self._episode is None:
            view = View(self._model, self._surface, data, self._draws)
            self._episode = view, self._solve(view)
        view, plan = self._episode
        return _action(view, next(plan))

    def _solve(self, view: View) -> Motion:
        """Achieve what doesn't hold, for ever: something may come undone."""
        while True:
            yield from stay(view, 1, OPEN)
            order = sorted(range(len(self._goal)), key=lambda g: _rank(view.model, self._goal[g]))
            for g in order:
                if not self._held[g]:
                    view.look()
                    yield from _achieve(view, self._goal, g, lambda g=g: bool(self._held[g]))
            if all(self._held):
                yield from stay(view, _IDLE, OPEN)


def _action(view: View, command: Command) -> Array:
    action = np.zeros(7)
    action[:3] = np.clip(_GAIN * _within_reach(view, command.position - view.grip) / _STEP, -1.0, 1.0)
    turn = rotation_vector(command.rotation @ view.hand.T)
    if np.linalg.norm(turn) > _TURN_SLACK:
        action[3:6] = np.clip(turn / _TURN_STEP, -1.0, 1.0)
    action[6] = command.gripper
    return action


def _within_reach(view: View, move: Array) -> Array:
    """`move` [3], shortened where its next centimetres would straighten the elbow, which then could not bend again."""
    most = _STEP / _GAIN
    step = move * min(1.0, most / max(float(np.linalg.norm(move)), 1e-9))
    excess = stretch(view.grip + step, view.hand, view.shoulder) - LONGEST_STRETCH
    return move if excess <= 0.0 else step - excess * unit(view.grip + step - view.shoulder)


def _rank(model: mujoco.MjModel, predicate: Predicate) -> int:
    """Open first and close last."""
    if not isinstance(predicate, JointRange):
        return 1
    return 0 if _direction(predicate) == opening_direction(model, predicate.joints[0]) else 2


def _direction(predicate: JointRange) -> float:
    return 1.0 if predicate.above else -1.0


def _achieve(view: View, goal: Sequence[Predicate], number: int, done: Callable[[], bool]) -> Motion:
    predicate = goal[number]
    if isinstance(predicate, JointRange):
        yield from move_joint(view, predicate.joints[0], _direction(predicate), done)
        return
    if isinstance(predicate, On | Stack):
        if (yield from pick(view, predicate.body, destination=view.position(predicate.other).copy())):
            at = view.position(predicate.other).copy()
            view.look()
            at[2] = view.top(view.root(predicate.other), at, 0.03)
            yield from put(view, predicate.body, at)
        return
    if isinstance(predicate, In | OnSite):
        yield from _to_region(view, goal, predicate, done)


def _to_region(view: View, goal: Sequence[Predicate], predicate: In | OnSite, done: Callable[[], bool]) -> Motion:
    site = int(view.model.site(predicate.site).id)
    yield from _open_holder(view, site)
    axes = view.data.site_xmat[site].reshape(3, 3)
    at = view.data.site_xpos[site].copy()
    if isinstance(predicate, OnSite):
        furniture = view.model.body(view.model.site_bodyid[site]).name.endswith("table")
        if furniture and is_flat(view, view.root(predicate.body)):
            yield from push(view, predicate.body, at, done)
            return
        if abs(axes[2, 2]) < 0.9:
            yield from lay(view, predicate.body, axes[2], at)
            return
    if not (yield from pick(view, predicate.body, destination=at)):
        return
    view.look()
    at = view.data.site_xpos[site].copy()
    half = np.abs(axes) @ view.model.site_size[site]
    root = int(view.model.body_rootid[view.model.site_bodyid[site]])
    if isinstance(predicate, In):
        at[2] = view.floor(root, at, half)
        yield from put(view, predicate.body, at, list(_grid(half, (-0.7, -0.35, 0.0, 0.35, 0.7))), axes)
        return
    at[2] = view.top(root, at, 0.03)
    shared = sum(isinstance(other, OnSite) and other.site == predicate.site for other in goal) > 1
    spots = [spot for spot in _grid(half, (-0.85, 0.0, 0.85)) if spot.any()] if shared else [np.zeros(3)]
    yield from put(view, predicate.body, at, spots)


def _grid(half: Array, shares: Sequence[float]) -> Iterator[Array]:
    """Points of a grid over a region with these half extents, m from its middle."""
    for x in shares:
        for y in shares:
            yield np.array([x * half[0], y * half[1], 0.0])


def _open_holder(view: View, site: int) -> Motion:
    """Open the drawer that a region belongs to, if it is one."""
    model, holder = view.model, view.model.site_bodyid[site]
    for j in range(model.njnt):
        if model.jnt_bodyid[j] != holder or model.jnt_type[j] != mujoco.mjtJoint.mjJNT_SLIDE:
            continue
        name = model.joint(j).name
        way = opening_direction(model, name)
        far = abs(model.jnt_range[j][1 if way > 0 else 0])
        address = model.jnt_qposadr[j]

        def share(way: float = way, far: float = far, address: int = address) -> float:
            return float(way * view.data.qpos[address] / far)

        if share() < 0.6:
            yield from move_joint(view, name, way, lambda: share() > _DRAWER_OPEN)
            view.look()
