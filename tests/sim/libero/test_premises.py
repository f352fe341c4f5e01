"""The premise check, on a scene where every way to fail is made by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.bddl import parse_bddl
from embodied_rl.sim.libero import premises
from embodied_rl.sim.libero.premises import PREMISES, Failure, PremiseChecker, Premises, check, relied_on
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.types import Array
from tests.sim.libero.exported_tasks import model_task

BDDL = """(define (problem x) (:language put the bowl on the plate)
  (:regions (cook_region (:target stove_1)) (drawer_region (:target cabinet_1)) (place (:target table)))
  (:fixtures table - table cabinet_1 - cabinet stove_1 - stove)
  (:objects bowl_1 - bowl bottle_1 - bottle plate_1 - plate)
  (:obj_of_interest bowl_1 plate_1)
  (:init (On bottle_1 table_place) {init})
  (:goal (And (On bowl_1 plate_1))))"""
QUIET = Failure("placed", "bowl 1 is not on plate 1")


@cache
def task() -> MujocoTask:
    return replace(model_task("put_the_bowl_on_the_plate"), build_physics=_with_edges)


def _with_edges() -> mujoco.MjModel:
    """Our scene, whose table is a plane without an end, with a board of 1 m by 1 m in its place."""
    model = model_task("put_the_bowl_on_the_plate").build_physics()
    table = model.geom("table_top").id
    model.geom_type[table], model.geom_size[table] = mujoco.mjtGeom.mjGEOM_BOX, (0.5, 0.5, 0.02)
    model.geom_pos[table, 2] -= 0.02
    model.geom_rbound[table], model.geom_aabb[table] = 1.0, (0.0, 0.0, 0.0, 0.5, 0.5, 0.02)
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_MIDPHASE
    return model


@cache
def _checker(init: str) -> PremiseChecker:
    return PremiseChecker(task(), BDDL.format(init=init))


def checker(init: str = "") -> PremiseChecker:
    """One for all tests, which is given other states."""
    return _checker(init)


def judge(state: Array, init: str = "") -> tuple[list[Failure], bool]:
    """What fails in `state`."""
    it = checker(init)
    it._task = replace(it._task, init_states=state[None])
    return it.check(0)


def state_with(body: str, pos: tuple[float, float, float] | None = None, up: float = 0.0) -> Array:
    """The first stored state with an object elsewhere (pos: m from where it is), or with a speed upwards (m/s)."""
    model, state = checker().model, task().init_states[0].copy()
    joint = model.body_jntadr[model.body(f"{body}_main").id]
    at = 1 + model.jnt_qposadr[joint]
    state[at : at + 3] += (0.0, 0.0, 0.0) if pos is None else pos
    state[1 + model.nq + model.jnt_dofadr[joint] + 2] = up
    return state


def over(body: str, other: str, height: float) -> Array:
    """The first stored state with `body` over the middle of a body or site."""
    model = checker().model
    data = mujoco.MjData(model)
    data.qpos[:] = task().init_states[0][1 : 1 + model.nq]
    mujoco.mj_kinematics(model, data)
    sites = [model.site(i).name for i in range(model.nsite)]
    place = data.site(other).xpos if other in sites else data.body(f"{other}_main").xpos
    gap = place - data.body(f"{body}_main").xpos
    return state_with(body, (gap[0], gap[1], gap[2] + height))


def kinds(found: list[Failure]) -> set[str]:
    return {failure.premise for failure in found}


def test_stored_states_of_our_own_scene_hold_every_premise() -> None:
    for row in (0, 17, 60):
        assert judge(task().init_states[row]) == ([], False)


def test_an_object_beside_the_table_falls() -> None:
    found, unsolvable = judge(state_with("bowl_1", (0.0, 1.5, 0.0)))
    assert "kept" in kinds(found)
    assert unsolvable
    assert found[0].text.startswith("bowl 1 falls off the table")
    found, unsolvable = judge(state_with("bottle_1", (0.0, 1.5, 0.0)))
    assert "kept" in kinds(found)
    assert not unsolvable, "the task does not need the bottle"


def test_what_is_thrown_over_the_table() -> None:
    state, model = state_with("bowl_1", up=2.5), checker().model
    state[1 + model.nq + model.jnt_dofadr[model.body_jntadr[model.body("bowl_1_main").id]]] = 1.1  # m/s along x
    found, unsolvable = judge(state)
    assert next(failure.text for failure in found if failure.premise == "kept").startswith("bowl 1 is thrown 0.")
    assert unsolvable


def test_what_hops_is_in_the_air_at_the_first_look() -> None:
    found, unsolvable = judge(state_with("bottle_1", up=3.4))
    assert kinds(found) & {"landed"}
    assert not unsolvable
    text = next(failure.text for failure in found if failure.premise == "landed")
    assert text.startswith("bottle 1 is ")
    assert text.endswith("mm up in the air after 10 steps")
    assert "landed" not in kinds(judge(state_with("bottle_1", up=0.5))[0])


def test_what_moves_at_the_end_is_not_at_rest() -> None:
    found, _ = judge(state_with("bottle_1", up=4.5))  # still falling after a second
    assert "rests" in kinds(found)


def test_a_goal_that_holds_at_the_start() -> None:
    assert kinds(judge(over("bowl_1", "plate_1", 0.02))[0]) == {"open"}


@pytest.mark.parametrize(
    ("init", "place", "height", "text"),
    [
        ("(On bowl_1 stove_1_cook_region)", "stove_1_cook_region", 0.03, "bowl 1 is not on stove 1 cook region"),
        (
            "(In bowl_1 cabinet_1_drawer_region)",
            "cabinet_1_drawer_region",
            0.0,
            "bowl 1 is not in cabinet 1 drawer region",
        ),
    ],
)
def test_places_on_fixtures(init: str, place: str, height: float, text: str) -> None:
    found, unsolvable = judge(task().init_states[0], init)
    assert found == [Failure("placed", text)]
    assert not unsolvable
    assert "placed" not in kinds(judge(over("bowl_1", place, height), init)[0])


def test_a_place_on_another_object() -> None:
    assert judge(task().init_states[0], "(On bowl_1 plate_1)")[0] == [QUIET]
    assert QUIET not in judge(over("bowl_1", "plate_1", 0.02), "(On bowl_1 plate_1)")[0]


def test_what_the_scene_lacks_is_not_judged_and_said() -> None:
    bddl = BDDL.format(init="(On bowl_1 spoon_1)").replace("(:objects", "(:objects spoon_1 - spoon")
    found = PremiseChecker(task(), bddl)
    assert found.unjudged == ["bowl 1 is on spoon 1"]
    assert found.check(0) == ([], False)


def test_a_check_that_does_not_settle_misses_what_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_with("bowl_1", (0.0, 1.5, 0.0))
    assert judge(state)[1]
    monkeypatch.setattr(premises, "SETTLED", 0)
    assert not judge(state)[1]


def test_stopping_at_rest_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [task().init_states[3], state_with("bottle_1", up=1.0), over("bowl_1", "plate_1", 0.02)]
    early = [judge(state) for state in states]
    monkeypatch.setattr(premises, "_STILL", -1.0)  # never still
    assert [judge(state) for state in states] == early


def test_the_top_of_a_flight_is_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speed 0 after the first five steps, 30 cm up: only the acceleration says that it comes down again."""
    state = state_with("bottle_1", up=9.81 * 0.25)
    assert judge(state) == ([], False)
    monkeypatch.setattr(premises, "_STILL_FORCE", np.inf)
    assert kinds(judge(state)[0]) == {"landed"}


def test_a_task_as_a_whole() -> None:
    thrown, fine = state_with("bowl_1", (0.0, 1.5, 0.0)), task().init_states[0]
    found = check(replace(task(), init_states=np.stack([fine, thrown, fine])), BDDL.format(init=""))
    assert (found.states, list(found.failures), found.unsolvable, found.unjudged) == (3, [1], (1,), ())
    assert found.failed(range(3)) == [1]
    assert found.failed([0, 2]) == []
    assert found.failed(range(3), "kept") == [1]
    assert found.failed(range(3), "landed") == []
    assert {failure.premise for failure in found.failures[1]} <= set(PREMISES)


def test_a_simulation_that_diverges_cannot_be_solved() -> None:
    state = task().init_states[0].copy()
    state[-1] = 1e12
    found, unsolvable = judge(state)
    assert kinds(found) == {"kept"}
    assert unsolvable


TABLE = """(define (problem x) (:language x)
  (:regions (next_to_plate_region (:target main_table)) (ketchup_init_region (:target main_table))
    (bowl_back_init_region (:target main_table)) (target_object_region (:target floor)) (top_side (:target box_1)))
  (:fixtures main_table - kitchen_table floor - floor box_1 - microwave)
  (:objects bowl_1 - akita_black_bowl ketchup_1 - ketchup)
  (:obj_of_interest {interest})
  (:init (On {what})) (:goal (On bowl_1 ketchup_1)))"""


@pytest.mark.parametrize(
    ("what", "instruction", "counts"),
    [
        ("bowl_1 main_table_next_to_plate_region", "pick up the bowl next to the plate", True),
        ("bowl_1 main_table_next_to_plate_region", "put the bowl on the plate", False),
        ("bowl_1 main_table_bowl_back_init_region", "put the black bowl at the back on the plate", True),
        ("bowl_1 main_table_bowl_back_init_region", "put the middle black bowl on the plate", False),
        ("ketchup_1 main_table_ketchup_init_region", "pick up the ketchup", False),
        ("ketchup_1 floor_target_object_region", "pick up the ketchup", False),
        ("bowl_1 ketchup_1", "pick up the bowl", True),
        ("bowl_1 box_1_top_side", "pick up the bowl", True),
        ("box_1 main_table_next_to_plate_region", "next to the plate", False),
    ],
)
def test_which_places_an_instruction_relies_on(what: str, instruction: str, counts: bool) -> None:
    problem = parse_bddl(TABLE.format(what=what, interest="bowl_1 ketchup_1 box_1"))
    assert bool(relied_on(problem, instruction)) == counts
    other = parse_bddl(TABLE.format(what=what, interest="floor"))
    assert relied_on(other, instruction) == [], "only objects of interest count"


def test_an_empty_list_of_failures_is_no_entry() -> None:
    found = Premises(4, {2: (QUIET,)}, (), ())
    assert found.failed(range(4)) == [2]
