"""What a task file's goal means in terms of `sim/mujoco/task.py`'s predicates."""

from __future__ import annotations

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.bddl import Fact, Problem
from embodied_rl.sim.mujoco.task import In, JointRange, On, OnSite, Predicate
from embodied_rl.sim.tabletop.fixtures import FixtureType
from embodied_rl.sim.tabletop.scene import TABLE, fixture_type, object_type
from embodied_rl.sim.tabletop.shapes import geom_names

_WORDS = ("on", "in", "open", "close", "turnon", "turnoff")


def goal_predicates(problem: Problem) -> tuple[Predicate, ...]:
    """The conjunction that a task file's (:goal ...) asks for. UserError for what the scene can't express."""
    return tuple(_predicate(problem, fact) for fact in problem.goal)


def _predicate(problem: Problem, fact: Fact) -> Predicate:
    if fact.predicate not in _WORDS:
        raise UserError(f"{problem.name}: unknown predicate '{fact.predicate}'.{suggest(fact.predicate, _WORDS)}")
    relation = fact.predicate in ("on", "in")
    if len(fact.args) != (2 if relation else 1):
        raise UserError(f"{problem.name}: '{fact.predicate}' takes {2 if relation else 1} argument(s)")
    if not relation:
        return _joint_range(problem, fact.predicate, fact.args[0])
    name, where = fact.args
    if name not in problem.objects:
        raise UserError(f"{problem.name}: '{fact.predicate}' needs an object first, '{name}' is none")
    geoms = geom_names(name, object_type(problem, name).shapes)
    if fact.predicate == "in":
        _fixture_region(problem, where)
        return In(f"{name}_main", where)
    if where in problem.regions:
        fixture = _fixture_region(problem, where)
        return OnSite(f"{name}_main", where, geoms, geom_names(fixture, fixture_type(problem, fixture).shapes))
    if where in problem.objects:
        other = geom_names(where, object_type(problem, where).shapes)
    else:
        other = geom_names(where, fixture_type(problem, where).shapes)
    return On(f"{name}_main", f"{where}_main", geoms, other)


def _fixture_region(problem: Problem, name: str) -> str:
    """The fixture that owns region `name`."""
    region = problem.regions.get(name)
    if region is None or region.target == TABLE or region.target not in problem.fixtures:
        raise UserError(f"{problem.name}: a goal needs a region of a fixture, '{name}' is none")
    own = [r.name for r in fixture_type(problem, region.target).regions]
    if region.name not in own:
        raise UserError(f"{problem.name}: '{region.target}' has no region '{region.name}'.{suggest(region.name, own)}")
    return region.target


def jointed_fixture(problem: Problem, name: str) -> tuple[str, FixtureType]:
    """The fixture with a moving part that `name`, a fixture or a region of one, speaks of."""
    fixture = problem.regions[name].target if name in problem.regions else name
    if fixture in problem.fixtures and fixture != TABLE:
        kind = fixture_type(problem, fixture)
        if kind.part is not None:
            return fixture, kind
    raise UserError(f"{problem.name}: '{name}' has nothing that opens or turns")


def joint_name(fixture: str, kind: FixtureType) -> str:
    """The joint of a fixture's moving part."""
    if kind.part is None:
        raise ValueError(f"{fixture} has no moving part")
    return f"{fixture}_{kind.part.name}_joint"


def _joint_range(problem: Problem, word: str, name: str) -> JointRange:
    fixture, kind = jointed_fixture(problem, name)
    above = word in ("open", "turnon")
    threshold = kind.on_above if above else kind.off_below
    return JointRange((joint_name(fixture, kind),), threshold, above=above, need_all=not above)
