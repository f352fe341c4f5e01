"""A scripted expert with privileged state: it reads its plan from the task's goal and reacts to what it sees."""

from __future__ import annotations

import mujoco
import numpy as np

from embodied_rl.sim.bddl import Fact, Problem
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.tabletop import problem_of
from embodied_rl.sim.tabletop.goals import joint_name, jointed_fixture
from embodied_rl.sim.tabletop.panda import FINGER_HOME, HOME
from embodied_rl.sim.tabletop.scene import TABLE, fixture_type, object_type
from embodied_rl.sim.tabletop.skills import Obstacle, PickPlace, Place, Skill, Slide, Turn
from embodied_rl.types import Array

_STEP = 0.05
"""Metres that an action of 1 asks for."""
_GAIN = 0.6
"""Share of the way to its target that a command asks for. Well under 1, so that the command tells how far it still is:
bang-bang commands are quicker, and far harder to imitate."""
_TURN_STEP = 0.5
"""Radians that a rotation action of 1 asks for."""
_TURN_SLACK = 0.03
"""Rotation error (rad) that is left alone."""
_SPREAD = 0.045
"""Half the distance (m) between two things that go into one container."""
_DROP = 0.025
"""Height (m) over the floor of a container at which an object is let go."""


class Expert:
    """Solves `task` one control step at a time.

        expert = Expert(task, model)
        expert.reset()
        action = expert.act(data)    # float64 [7] in [-1, 1]

    It keeps no more than the phase of the skill at hand, so it goes on from any state, disturbed or not.
    """

    def __init__(self, task: MujocoTask, model: mujoco.MjModel) -> None:
        problem = problem_of(task.name)
        self._skills = [_skill(problem, fact) for fact in problem.goal]
        data = mujoco.MjData(model)
        data.qpos[:9] = (*HOME, *FINGER_HOME)
        mujoco.mj_kinematics(model, data)
        self._upright = data.site("gripper0_grip_site").xmat.reshape(3, 3).copy()

    def reset(self) -> None:
        """Before the first step of an episode."""
        for skill in self._skills:
            skill.reset()

    def act(self, data: mujoco.MjData) -> Array:
        """The next action, float64 [7]: position and rotation deltas and gripper, in [-1, 1]."""
        if all(skill.finished for skill in self._skills):
            self.reset()  # the episode goes on, so something came undone
        skill = next(skill for skill in self._skills if not skill.finished)
        move = skill.next_move(data)
        site = data.site("gripper0_grip_site")
        action = np.zeros(7)
        action[:3] = np.clip(_GAIN * (move.target - site.xpos) / _STEP, -1.0, 1.0)
        action[3:6] = self._turn_back(site.xmat.reshape(3, 3))
        action[6] = move.grip
        return action

    def _turn_back(self, now: Array) -> Array:
        """Rotation action, [3], towards the upright hand; exactly 0 while it is nearly there."""
        error = 0.5 * np.cross(now, self._upright, axis=0).sum(axis=1)
        if np.linalg.norm(error) < _TURN_SLACK:
            return np.zeros(3)
        return np.clip(error / _TURN_STEP, -1.0, 1.0)


def _skill(problem: Problem, fact: Fact) -> Skill:
    if fact.predicate in ("on", "in"):
        return _pick_place(problem, fact)
    fixture, kind = jointed_fixture(problem, fact.args[0])
    assert kind.part is not None
    joint, tip = joint_name(fixture, kind), f"{fixture}_{kind.part.name}_tip"
    forward = fact.predicate in ("open", "turnon")
    if kind.part.hinge:
        until = kind.on_above + 0.08 if forward else kind.off_below - 0.08
        return Turn(joint, tip, direction=1.0 if forward else -1.0, until=until)
    return Slide(joint, tip, opening=forward, until=kind.on_above + 0.025 if forward else kind.off_below - 0.004)


def _pick_place(problem: Problem, fact: Fact) -> PickPlace:
    name, where = fact.args
    kind = object_type(problem, name)
    side = 0.0
    if where in problem.regions:
        fixture = problem.regions[where].target
        box = next(r for r in fixture_type(problem, fixture).regions if r.name == problem.regions[where].name)
        drop = _DROP - box.size[2] if fact.predicate == "in" else 0.004
        sharing = [f.args[0] for f in problem.goal if f.predicate == "in" and f.args[1] == where]
        aside = _SPREAD * (2 * sharing.index(name) - len(sharing) + 1) if name in sharing else 0.0
        place = Place(where, True, drop, 0.09, aside)
        side = 1.0 if box.on_part else 0.0  # a drawer is reached from its open side
    elif where in problem.fixtures:
        place = Place(f"{where}_main", False, fixture_type(problem, where).surface + 0.004, 0.07)
    else:
        place = Place(f"{where}_main", False, object_type(problem, where).top + 0.004, 0.09)
    return PickPlace(
        f"{name}_main",
        place,
        bottom=kind.bottom,
        top=kind.top,
        grip_height=kind.grip_height,
        rim=kind.rim,
        others=_obstacles(problem, name, where),
        prefer_side=side,
    )


def _obstacles(problem: Problem, name: str, where: str) -> tuple[Obstacle, ...]:
    """Everything but the object itself and where it goes."""
    found = []
    for other in problem.objects:
        if other not in (name, where):
            kind = object_type(problem, other)
            found.append(Obstacle(f"{other}_main", kind.radius, kind.bottom + kind.top))
    for other in problem.fixtures:
        if other not in (TABLE, where):
            fixture = fixture_type(problem, other)
            found.append(Obstacle(f"{other}_main", fixture.radius, fixture.height))
    return tuple(found)
