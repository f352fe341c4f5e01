"""The premise check on real tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.sim.libero.premises import PremiseChecker, _geoms, check
from embodied_rl.sim.libero.tasks import LiberoTask, load_task

RAMEKIN = "libero_spatial/pick_up_the_black_bowl_on_the_ramekin_and_place_it_on_the_plate"
MILK = "libero_object/pick_up_the_milk_and_place_it_in_the_basket"
STOVE = "libero_goal/turn_on_the_stove"


def few(task: LiberoTask, rows: list[int]) -> LiberoTask:
    return replace(task, init_states=task.init_states[rows])


@pytest.fixture(scope="module")
def ramekin(libero_root: Path) -> LiberoTask:
    return load_task(libero_root, RAMEKIN)


def test_the_bowl_slides_off_its_ramekin_on_this_mujoco(ramekin: LiberoTask) -> None:
    found = check(few(ramekin, [0, 20, 70]), ramekin.bddl)
    text = "akita black bowl 1 is not on glazed rim porcelain ramekin 1"
    assert {row: [each.text for each in failures] for row, failures in found.failures.items()} == {
        row: [text] for row in range(3)
    }
    assert (found.unsolvable, found.unjudged) == ((), ())


@pytest.mark.parametrize("name", [MILK, STOVE])
def test_tasks_without_trouble(libero_root: Path, name: str) -> None:
    task = load_task(libero_root, name)
    found = check(few(task, [0, 49, 50]), task.bddl)
    assert (found.failures, found.unsolvable, found.unjudged) == ({}, (), ())


@pytest.mark.parametrize(
    ("place", "words", "text"),
    [
        ("next_to_plate_region", "next to the plate", "mm outside main table next to plate region"),
        ("ramekin_region", "on the ramekin", ""),
    ],
)
def test_a_place_of_the_table(ramekin: LiberoTask, place: str, words: str, text: str) -> None:
    """The task file says that the bowl is somewhere else than it is; it lies on the ramekin or beside it."""
    bddl = ramekin.bddl.replace(
        "(On akita_black_bowl_1 glazed_rim_porcelain_ramekin_1)", f"(On akita_black_bowl_1 main_table_{place})"
    )
    assert bddl != ramekin.bddl
    task = replace(few(ramekin, [0]), instruction=f"pick up the black bowl {words}")
    found = check(task, bddl).failures.get(0, ())
    assert [each.premise for each in found] == ["placed"] * bool(text)
    assert all(each.text.endswith(text) for each in found)


def test_an_object_that_the_task_needs_and_one_that_it_does_not(ramekin: LiberoTask) -> None:
    checker = PremiseChecker(ramekin, ramekin.bddl)
    for body, needed in (("plate_1", True), ("cookies_1", False)):
        state, model = ramekin.init_states[0].copy(), checker.model
        at = 1 + model.jnt_qposadr[model.body_jntadr[model.body(f"{body}_main").id]]
        state[at + 1] += 1.0
        checker._task = replace(ramekin, init_states=state[None])
        found, unsolvable = checker.check(0)
        assert found[0].premise == "kept"
        assert unsolvable == needed


def test_geoms_that_touch_are_the_official_ones(ramekin: LiberoTask) -> None:
    model = ramekin.build_physics()
    (goal,) = ramekin.goal
    assert set(_geoms(model, "akita_black_bowl_1_main")) == set(goal.body_geoms)  # pyright: ignore
    assert set(_geoms(model, "plate_1_main")) == set(goal.other_geoms)  # pyright: ignore
