"""Every task loads; physics and visual models agree; initial states are distinct, settled and reproducible."""

from __future__ import annotations

import itertools

import mujoco
import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.bddl import parse_bddl
from embodied_rl.sim.mujoco.env import find_robot
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.tabletop import load_suite, problem_of, suites
from embodied_rl.sim.tabletop.goals import goal_predicates
from embodied_rl.sim.tabletop.initial_states import draw_states
from embodied_rl.sim.tabletop.panda import FINGER_HOME, HOME
from embodied_rl.sim.tabletop.scene import build_model

TASKS = [task for suite in suites() for task in load_suite(suite)]
by_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def test_four_suites_of_at_least_five_tasks() -> None:
    assert suites() == ("tabletop_spatial", "tabletop_object", "tabletop_goal", "tabletop_long")
    for suite in suites():
        tasks = load_suite(suite)
        assert len(tasks) >= 5
        assert len({task.instruction for task in tasks}) == len(tasks)
        assert all(task.suite == suite and task.name.startswith(f"{suite}/") for task in tasks)


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(UserError, match="Did you mean 'tabletop_object'"):
        load_suite("tabletop_objects")
    with pytest.raises(UserError, match=r"has no task 'turn_on_stove'\. Did you mean 'turn_on_the_stove'"):
        problem_of("tabletop_goal/turn_on_stove")


@by_task
def test_models_agree(task: MujocoTask) -> None:
    physics, visual = task.build_physics(), task.build_visual()
    for kind in ("body", "joint", "site", "actuator", "camera"):
        count = {"joint": "njnt", "body": "nbody", "site": "nsite", "actuator": "nu", "camera": "ncam"}[kind]
        names = [[getattr(model, kind)(i).name for i in range(getattr(model, count))] for model in (physics, visual)]
        assert names[0] == names[1]
    for field in ("body_pos", "body_quat", "body_mass", "jnt_range", "site_pos", "site_size", "cam_pos", "cam_quat"):
        np.testing.assert_array_equal(getattr(physics, field), getattr(visual, field), err_msg=field)
    assert {"agentview", "robot0_eye_in_hand"} <= {physics.camera(i).name for i in range(physics.ncam)}
    assert physics.nv <= 9 + 3 * 6
    assert visual.ngeom < 90
    assert not visual.geom_contype.any()
    find_robot(physics)
    compile_goal(task, physics)


@by_task
def test_initial_states(task: MujocoTask) -> None:
    model = task.build_physics()
    states = task.init_states
    assert states.dtype == np.float64
    assert states.shape == (100, 1 + model.nq + model.nv)
    assert (task.train_states, task.heldout_states) == (range(50), range(50, 100))
    np.testing.assert_array_equal(states[:, 1:10], np.tile([*HOME, *FINGER_HOME], (100, 1)))
    assert not states[:, 1 + model.nq :].any()
    # every state differs from every other by a tenth of a millimetre or more
    free = states[:, 10 : 1 + model.nq]
    assert min(np.abs(a - b).max() for a, b in itertools.combinations(free, 2)) > 1e-4


@by_task
def test_states_are_settled(task: MujocoTask) -> None:
    model = task.build_physics()
    data = mujoco.MjData(model)
    for row in (0, 49, 50, 99):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = task.init_states[row, 1 : 1 + model.nq]
        for _ in range(100):
            mujoco.mj_step1(model, data)
            data.ctrl[:7], data.ctrl[7:] = data.qfrc_bias[:7], FINGER_HOME
            mujoco.mj_step2(model, data)
        np.testing.assert_allclose(data.qpos, task.init_states[row, 1 : 1 + model.nq], atol=2e-4)


@pytest.mark.parametrize("suite", suites())
def test_states_can_be_drawn_again(suite: str) -> None:
    task = load_suite(suite)[0]
    again = draw_states(task.name, problem_of(task.name))
    np.testing.assert_allclose(again, task.init_states, atol=1e-7)
    other = draw_states(task.name + "x", problem_of(task.name))
    assert np.abs(other - task.init_states).max() > 1e-2


_SCENE = """(define (problem p) (:language words)
 (:regions (spot (:target table) (:ranges ((0 0 0 0)))) (cook_region (:target stove_1)) (nook (:target stove_1)))
 (:fixtures table - table stove_1 - stove plate_1 - {plate}) (:objects can_1 - {can})
 (:init (On can_1 table_spot) (On stove_1 table_spot) (On plate_1 table_spot)) (:goal {goal}))"""


@pytest.mark.parametrize(
    ("can", "plate", "goal", "message"),
    [
        ("cann", "plate", "(On can_1 plate_1)", "unknown object type 'cann'. Did you mean 'can'"),
        ("can", "plat", "(On can_1 plate_1)", "unknown fixture type 'plat'. Did you mean 'plate'"),
        ("can", "plate", "(Inn can_1 plate_1)", "unknown predicate 'inn'. Did you mean 'in'"),
        ("can", "plate", "(On can_1 stove_1_nook)", "'stove_1' has no region 'nook'"),
        ("can", "plate", "(Open plate_1)", "'plate_1' has nothing that opens or turns"),
        ("can", "plate", "(In can_1 table_spot)", "a goal needs a region of a fixture"),
        ("can", "plate", "(On plate_1 can_1)", "needs an object first"),
    ],
)
def test_bad_task_files_are_user_errors(can: str, plate: str, goal: str, message: str) -> None:
    problem = parse_bddl(_SCENE.format(can=can, plate=plate, goal=goal))

    def load() -> None:
        build_model(problem, visual=False)
        goal_predicates(problem)

    with pytest.raises(UserError) as error:
        load()
    assert message in str(error.value)
