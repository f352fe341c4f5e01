"""What a task's goal means, read off the official objects, in the terms of embodied_rl/sim/mujoco/task.py.

Runs inside the isolated environment. The rules of Open, Close, TurnOn and TurnOff are found by asking the official
methods on both sides of every bound that they know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_METHODS = {"open": "is_open", "close": "is_close", "turnon": "turn_on", "turnoff": "turn_off"}
_NEED_ALL = ("close", "turnoff")
_STEP = 1e-6
"""How far from a bound a method is asked; the ranges' bounds are at least 0.005 apart."""


def describe_goal(env: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The goal's predicates, and the sites whose visibility follows a joint, as JSON."""
    goal = [_predicate(env, *fact) for fact in env.parsed_problem["goal_state"]]
    indicators = []
    for name in [*env.fixtures_dict, *env.objects_dict]:
        sites = env.get_object(name).object_properties["vis_site_names"].values()
        if sites:
            when = _joint_range(env, "turnon", name)
            del when["kind"]
            indicators += [{"site": site, "when": when} for site, _ in sites]
    return goal, indicators


def _predicate(env: Any, word: str, first: str, second: str | None = None) -> dict[str, Any]:
    if second is None:
        return _joint_range(env, word, first)
    thing, other = env.get_object(first), env.get_object(second)
    state = env.object_states_dict[second]
    if state.object_state_type == "site":
        if word == "in":
            return {"kind": "In", "body": thing.root_body, "site": second}
        if word == "on" and hasattr(other, "under"):
            holder = env.get_object(state.parent_name)
            geoms = holder.contact_geoms if holder is not None else []
            own = thing.contact_geoms if holder is not None else []
            return {
                "kind": "OnSite",
                "body": thing.root_body,
                "site": second,
                "body_geoms": own,
                "contact_geoms": geoms,
            }
    elif word == "on":
        return {
            "kind": "On",
            "body": thing.root_body,
            "other": other.root_body,
            "body_geoms": thing.contact_geoms,
            "other_geoms": other.contact_geoms,
        }
    raise ValueError(f"the goal ({word} {first} {second}) is not known")


def _joint_range(env: Any, word: str, name: str) -> dict[str, Any]:
    state = env.object_states_dict[name]
    owner = env.get_object(state.parent_name) if state.object_state_type == "site" else env.get_object(name)
    joints = list(env.get_object(name).joints)
    if not joints:
        raise ValueError(f"the goal ({word} {name}) has no joint")
    ranges = owner.object_properties["articulation"]
    bounds = sorted({float(x) for values in ranges.values() for x in values})
    threshold, above, inclusive = find_threshold(getattr(owner, _METHODS[word]), bounds)
    return {
        "kind": "JointRange",
        "joints": joints,
        "threshold": threshold,
        "above": above,
        "need_all": word in _NEED_ALL,
        "inclusive": inclusive,
    }


def find_threshold(holds: Callable[[float], bool], bounds: list[float]) -> tuple[float, bool, bool]:
    """The one bound at which `holds` changes: its value, whether it holds above it, and whether at it."""
    changes = [x for x in bounds if holds(x - _STEP) != holds(x + _STEP)]
    if len(changes) != 1:
        raise ValueError(f"a state of a joint should change at one of {bounds}, it changes at {changes}")
    return changes[0], bool(holds(changes[0] + _STEP)), bool(holds(changes[0]))
