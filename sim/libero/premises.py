"""Premise check: whether what a LIBERO task says holds once an initial state has settled.

LIBERO stores its initial states as they were drawn, with objects 3 to 16 cm over their places, and some of them inside
each other. Published protocols let them fall for 10 or 15 control steps before the policy's first decision. What comes
of that depends on MuJoCo's contacts: a bowl may slide off its ramekin, a bottle may still be in the air.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import mujoco
import numpy as np

from embodied_rl.sim.bddl import Fact, Problem, parse_bddl
from embodied_rl.sim.libero.protocol import OPEN
from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_predicates
from embodied_rl.sim.mujoco.task import In, MujocoTask, On, Predicate
from embodied_rl.types import Array

FIRST_LOOK, SETTLED = 10, 20
"""Control steps: the policy's first decision in most protocols; by then every state of LIBERO that settles has."""
REST_SPEED = 0.01
"""m/s. In 99.8 % of the 13,000 states of LIBERO's 130 tasks the fastest object is below 3 mm/s after 20 steps."""
HIGH = 0.10
"""m over where an object is stored. LIBERO stores bottles 3 cm inside a table: those that then fly are 0.57 m up."""
BELOW = 0.25
"""m below the lowest stored object. What lands on its table falls up to 8 cm, LIBERO's lowest table is 43 cm high."""
FAR = 0.5
"""m sideways from where an object is stored. Objects that push each other apart on a table stay below it."""
PLACE = 0.06
"""m outside a region of a table. LIBERO's instructions tell places apart ('next to the plate', 'between the plate and
the ramekin') that are 11 cm from each other and more; half of that is nearer to another place."""
_CHUNK = 5
_STILL = 1e-3
"""m/s and rad/s under which nothing moves any more: no object of LIBERO's then moves by 1 mm until `SETTLED`."""
_STILL_FORCE = 0.1
"""m/s^2 and rad/s^2: an object at the top of its flight is slow as well, but falls at 9.81."""
Premise = Literal["placed", "rests", "landed", "kept", "open"]
PREMISES: Mapping[Premise, str] = {
    "kept": "nothing is thrown off the table",
    "landed": "nothing is in the air",
    "placed": "objects are where the task says",
    "rests": "objects are at rest",
    "open": "the goal is not reached yet",
}
"""Every premise, in words, in the order in which a state's failures are listed."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A premise that does not hold in a state, and what is the case instead, in words."""

    premise: Premise
    text: str


@dataclass(frozen=True, slots=True)
class Premises:
    """What was found for a task.

    Args:
        states: initial states that were looked at, all of the task's.
        failures: by row of the initial states; rows where every premise holds are left out.
        unsolvable: rows that nobody can solve, since an object that the task needs is thrown off the table.
        unjudged: what the task file says about the start and no rule here can judge.

    Example:
        found = check(load_task(root, "libero_spatial/pick_up_..."))
        found.failures.get(3, ())  # empty: every premise holds in state 3
    """

    states: int
    failures: Mapping[int, tuple[Failure, ...]]
    unsolvable: tuple[int, ...]
    unjudged: tuple[str, ...]

    def failed(self, rows: Sequence[int], premise: Premise | None = None) -> list[int]:
        """Those of `rows` where `premise` fails; without one, where any does."""
        kinds = {row: {failure.premise for failure in self.failures.get(row, ())} for row in rows}
        return [row for row, found in kinds.items() if (found if premise is None else premise in found)]


@dataclass(frozen=True, slots=True)
class _Region:
    """Fact: `body` is in the region of `site`. `touch`: its geoms, and those that it must touch; empty: a table's."""

    body: str
    site: str
    touch: tuple[frozenset[int], frozenset[int]] | None


@dataclass(frozen=True, slots=True)
class _Settled:
    """Positions [B, 3] (m) of the movable objects when stored, at the first look and at the end; speeds [B] (m/s)."""

    stored: Array
    first: Array
    last: Array
    speed: Array
    held: Array
    reached: bool
    """The goal held at some look."""
    diverged: bool


class PremiseChecker:
    """Settles initial states of one task and judges them. Not for two threads at once.

    Args:
        task: its `build_physics` decides the era of the contacts.
        bddl: the task file's text.
    """

    def __init__(self, task: MujocoTask, bddl: str) -> None:
        self._task, self.model = task, task.build_physics()
        self._problem = parse_bddl(bddl, task.name)
        free = np.flatnonzero(self.model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
        self._bodies = self.model.jnt_bodyid[free].astype(np.int64)
        self._dofs = self.model.jnt_dofadr[free].astype(np.int64)
        self.objects = [str(self.model.body(body).name).removesuffix("_main") for body in self._bodies]
        self._called = [_words(name) for name in self.objects]
        self._watched = _dofs_beside_the_robot(self.model)
        self._facts: list[Fact] = []
        self._regions: list[tuple[Fact, _Region]] = []
        self.unjudged: list[str] = []
        predicates: list[Predicate] = []
        for fact in relied_on(self._problem, task.instruction):
            rule = self._rule(fact)
            if isinstance(rule, _Region):
                self._regions.append((fact, rule))
            elif rule is not None:
                self._facts.append(fact)
                predicates.append(rule)
            else:
                self.unjudged.append(_sentence(fact, "is"))
        compiled = compile_predicates((*task.goal, *predicates), self.model)
        self._env = Env(self.model, find_robot(self.model), compiled, "exact" if task.is_official else "fast")

    def check(self, row: int) -> tuple[list[Failure], bool]:
        """What fails in an initial state, and whether nobody can solve it."""
        found = self._settle(self._task.init_states[row])
        if found.diverged:
            return [Failure("kept", "the simulation diverges while the state settles")], True
        thrown, rise = self._thrown(found), found.first[:, 2] - found.stored[:, 2]
        failures = [Failure("kept", f"{self._called[i]} {text}") for i, text in thrown.items()]
        failures += [
            Failure("landed", f"{self._called[i]} is {1000 * rise[i]:.0f} mm up in the air after {FIRST_LOOK} steps")
            for i in np.flatnonzero(rise > HIGH)
        ]
        failures += [Failure("placed", text) for text in self._misplaced(found)]
        failures += [
            Failure("rests", f"{self._called[i]} still moves at {100 * found.speed[i]:.0f} cm/s after {SETTLED} steps")
            for i in np.flatnonzero(found.speed > REST_SPEED)
        ]
        if found.reached:
            failures.append(Failure("open", "the goal is reached before the policy has done anything"))
        return failures, any(self.objects[i] in self._problem.obj_of_interest for i in thrown)

    def _settle(self, state: Array) -> _Settled:
        env, goals = self._env, len(self._task.goal)
        env.reset(state, self._task.start)
        stored = first = env.data.xpos[self._bodies]
        reached = diverged = still = False
        actions = np.tile(np.asarray(OPEN, np.float32), (_CHUNK, 1))
        for done in range(_CHUNK, SETTLED + 1, _CHUNK):
            if not still:
                _, status = env.run(actions, stop=False)
                diverged = diverged or status == kernel.FAILED
                reached = reached or bool(env.held[:goals].all())
                still = self._still()
            if done <= FIRST_LOOK:
                first = env.data.xpos[self._bodies]
        velocity = env.data.qvel[self._dofs[:, None] + np.arange(3)]
        return _Settled(
            stored=stored,
            first=first,
            last=env.data.xpos[self._bodies],
            speed=np.linalg.norm(velocity, axis=1),
            held=env.held[goals:].copy(),
            reached=reached,
            diverged=diverged,
        )

    def _still(self) -> bool:
        data, watched = self._env.data, self._watched
        moves = np.abs(data.qvel[watched]).max(initial=0.0) > _STILL
        return not moves and bool(np.abs(data.qacc[watched]).max(initial=0.0) < _STILL_FORCE)

    def _thrown(self, found: _Settled) -> dict[int, str]:
        """Objects that left the table, and where they are, in words."""
        lowest = found.stored[:, 2].min(initial=np.inf)
        texts = {}
        for i, (stored, last) in enumerate(zip(found.stored, found.last, strict=True)):
            away = float(np.hypot(*(last - stored)[:2]))
            if last[2] < lowest - BELOW:
                texts[i] = f"falls off the table ({stored[2] - last[2]:.2f} m lower)"
            elif away > FAR:
                texts[i] = f"is thrown {away:.2f} m away"
        return texts

    def _misplaced(self, found: _Settled) -> list[str]:
        texts = [_sentence(fact, "is not") for fact, holds in zip(self._facts, found.held, strict=True) if not holds]
        for fact, region in self._regions:
            outside = self._outside(region)
            if region.touch is None:
                if outside > PLACE:
                    where = _words(fact.args[1])
                    texts.append(f"{_words(fact.args[0])} is {1000 * outside:.0f} mm outside {where}")
            elif outside > 0.0 or not self._touching(*region.touch):
                texts.append(_sentence(fact, "is not"))
        return texts

    def _outside(self, region: _Region) -> float:
        """How far (m) the object's origin is outside the region, seen from above."""
        data, site = self._env.data, self.model.site(region.site).id
        gap = data.body(region.body).xpos - data.site_xpos[site]
        local = data.site_xmat[site].reshape(3, 3).T @ gap
        return float(np.linalg.norm(np.maximum(np.abs(local[:2]) - self.model.site_size[site][:2], 0.0)))

    def _touching(self, own: frozenset[int], others: frozenset[int]) -> bool:
        pairs = self._env.data.contact.geom.tolist()
        return any((a in own and b in others) or (b in own and a in others) for a, b in pairs)

    def _rule(self, fact: Fact) -> Predicate | _Region | None:
        """How to judge a fact about a movable object; None where the model lacks what it names."""
        body, where = f"{fact.args[0]}_main", fact.args[1]
        bodies = {self.model.body(i).name for i in range(self.model.nbody)}
        sites = {self.model.site(i).name for i in range(self.model.nsite)}
        if body not in bodies:
            return None
        if where in self._problem.objects:
            other = f"{where}_main"
            known = fact.predicate == "on" and other in bodies
            return On(body, other, _geoms(self.model, body), _geoms(self.model, other)) if known else None
        if where not in sites:
            return None
        if fact.predicate == "in":
            return In(body, where)
        holder = f"{self._problem.regions[where].target}_main"
        if holder not in bodies:
            return _Region(body, where, None)
        return _Region(body, where, (_ids(self.model, body), _ids(self.model, holder)))


def check(task: MujocoTask, bddl: str) -> Premises:
    """Judge every initial state of a task, under the contacts that its `build_physics` has."""
    checker = PremiseChecker(task, bddl)
    failures: dict[int, tuple[Failure, ...]] = {}
    unsolvable = []
    for row in range(len(task.init_states)):
        found, hopeless = checker.check(row)
        if found:
            failures[row] = tuple(found)
        if hopeless:
            unsolvable.append(row)
    return Premises(len(task.init_states), failures, tuple(unsolvable), tuple(checker.unjudged))


def relied_on(problem: Problem, instruction: str) -> list[Fact]:
    """What `:init` says about where the objects of interest are, as far as the instruction relies on it.

    A place on another object or on a fixture always counts. A region of a table counts when the instruction has all
    words of its name but the object's own: 'next_to_plate_region' does in 'pick up the black bowl next to the plate
    ...', 'ketchup_init_region' has no word of its own.
    """
    said = set(instruction.lower().split())
    found = []
    for fact in problem.init:
        if fact.predicate not in ("on", "in") or len(fact.args) != 2:
            continue
        name, where = fact.args
        if name not in problem.objects or name not in problem.obj_of_interest:
            continue
        region = problem.regions.get(where)
        if region is not None and _is_table(problem, region.target):
            own = {*name.split("_"), *problem.objects[name].split("_"), "init", "region"}
            words = set(region.name.lower().split("_")) - own
            if not words or not words <= said:
                continue
        found.append(fact)
    return found


def _is_table(problem: Problem, target: str) -> bool:
    return problem.fixtures.get(target, "").endswith(("table", "floor"))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _sentence(fact: Fact, verb: str) -> str:
    return f"{_words(fact.args[0])} {verb} {fact.predicate} {_words(fact.args[1])}"


def _ids(model: mujoco.MjModel, root: str) -> frozenset[int]:
    """The geoms of a body and of all that hangs on it."""
    bodies = {int(model.body(root).id)}
    for body in range(model.nbody):  # parents come first
        if int(model.body_parentid[body]) in bodies:
            bodies.add(body)
    return frozenset(geom for geom in range(model.ngeom) if int(model.geom_bodyid[geom]) in bodies)


def _geoms(model: mujoco.MjModel, root: str) -> tuple[str, ...]:
    return tuple(name for geom in sorted(_ids(model, root)) if (name := str(model.geom(geom).name)))


def _dofs_beside_the_robot(model: mujoco.MjModel) -> Array:
    """Degrees of freedom of objects and fixtures."""
    owner = [model.joint(int(joint)).name for joint in model.dof_jntid]
    return np.array([i for i, name in enumerate(owner) if not name.startswith(("robot0_", "gripper0_"))], np.int64)
