"""Goals over constructed states: true where they should hold, false a little beside."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.mujoco.task import In, JointRange, MujocoTask, On, OnSite
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.tabletop.initial_states import settle

TASKS = {
    task.name: task for suite in ("tabletop_object", "tabletop_goal", "tabletop_long") for task in load_suite(suite)
}


def world_of(name: str) -> tuple[MujocoTask, Env]:
    task = TASKS[name]
    model = task.build_physics()
    world = Env(model, find_robot(model), compile_goal(task, model), "fast")
    world.reset(task.init_states[0])
    assert not world.judge().all()
    return task, world


def put(world: Env, joint: str, at: np.ndarray, *, settled: bool) -> np.ndarray:
    """Move a free body to `at`, let it come to rest if asked, and return the goal's predicates."""
    world.data.joint(joint).qpos[:3] = at
    world.data.joint(joint).qpos[3:] = (1, 0, 0, 0)
    world.data.qvel[:] = 0
    if settled:
        settle(world.model, world.data)
    else:
        mujoco.mj_forward(world.model, world.data)
    return world.judge()


def test_in_basket() -> None:
    task, world = world_of("tabletop_object/pick_up_the_soup_can_and_place_it_in_the_basket")
    assert isinstance(task.goal[0], In)
    middle = world.data.site("basket_1_contain_region").xpos.copy()
    assert put(world, "can_1_joint0", middle + np.array([0.03, 0.03, 0.02]), settled=True).all()
    assert not put(world, "can_1_joint0", middle + np.array([0, 0, 0.1]), settled=False).any()
    assert not put(world, "can_1_joint0", middle + np.array([0, -0.2, 0.02]), settled=True).any()


def test_on_plate() -> None:
    task, world = world_of("tabletop_goal/put_the_bowl_on_the_plate")
    assert isinstance(task.goal[0], On)
    plate = world.data.body("plate_1_main").xpos.copy()
    assert put(world, "bowl_1_joint0", plate + np.array([0.01, 0.01, 0.032]), settled=True).all()
    assert not put(world, "bowl_1_joint0", plate + np.array([0.01, 0.01, 0.06]), settled=False).any()  # hovers
    assert not put(
        world, "bowl_1_joint0", plate + np.array([0.035, 0, 0.032]), settled=True
    ).any()  # too far to the side


def test_on_stove_and_cabinet() -> None:
    for name, site in (("stove", "stove_1_cook_region"), ("top_of_the_cabinet", "cabinet_1_top_side")):
        stem = "put_the_bowl_on_the_stove" if name == "stove" else "put_the_bowl_on_top_of_the_cabinet"
        task, world = world_of(f"tabletop_goal/{stem}")
        assert isinstance(task.goal[0], OnSite)
        at = world.data.site(site).xpos.copy()
        assert put(world, "bowl_1_joint0", at + np.array([0.01, 0, 0.022]), settled=True).all()
        assert not put(world, "bowl_1_joint0", at + np.array([0.01, 0, 0.05]), settled=False).any()
        assert not put(world, "bowl_1_joint0", at + np.array([0.2, 0, 0.0]), settled=False).any()


@pytest.mark.parametrize(
    ("name", "joint", "true", "false"),
    [
        ("tabletop_goal/open_the_drawer_of_the_cabinet", "cabinet_1_drawer_joint", 0.11, 0.09),
        ("tabletop_goal/turn_on_the_stove", "stove_1_knob_joint", 0.65, 0.55),
        ("tabletop_long/put_the_bowl_in_the_drawer_and_close_it", "cabinet_1_drawer_joint", 0.005, 0.02),
    ],
)
def test_joints(name: str, joint: str, true: float, false: float) -> None:
    task, world = world_of(name)
    assert isinstance(task.goal[-1], JointRange)
    for value, want in ((true, True), (false, False)):
        world.data.joint(joint).qpos[0] = value
        mujoco.mj_forward(world.model, world.data)
        assert world.judge()[-1] == want


def test_bowl_fits_into_the_closed_drawer() -> None:
    _task, world = world_of("tabletop_long/put_the_bowl_in_the_drawer_and_close_it")
    world.data.joint("cabinet_1_drawer_joint").qpos[0] = 0.0
    mujoco.mj_forward(world.model, world.data)
    at = world.data.site("cabinet_1_drawer_region").xpos.copy()
    assert put(world, "bowl_1_joint0", at + np.array([0, 0, 0.004]), settled=True).all()
    np.testing.assert_allclose(world.data.joint("bowl_1_joint0").qpos[:2], at[:2], atol=5e-3)
