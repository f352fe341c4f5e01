"""The scripted expert on a few states of every task, undisturbed and with noisy actions; a broken one must fail."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.mujoco.task import In, MujocoTask
from embodied_rl.sim.tabletop import load_suite, suites
from embodied_rl.sim.tabletop.expert import Expert

TASKS = [task for suite in suites() for task in load_suite(suite)]


def solve(task: MujocoTask, rows: list[int], noise: float, *, grip: float = 1.0) -> list[int | None]:
    """Control steps until success (None: failed) from each row; `grip` scales the gripper command."""
    model = task.build_physics()
    world = Env(model, find_robot(model), compile_goal(task, model), "fast")
    expert = Expert(task, model)
    lengths: list[int | None] = []
    for row in rows:
        rng = np.random.default_rng(row)
        world.reset(task.init_states[row])
        expert.reset()
        taken = None
        for step in range(task.max_episode_steps):
            action = expert.act(world.data)
            assert action.shape == (7,)
            assert np.abs(action).max() <= 1.0
            action[:3] += noise * rng.standard_normal(3)
            action[6] *= grip
            world.run(np.clip(action, -1, 1)[None].astype(np.float32))
            if world.judge().all():
                taken = step + 1
                break
        lengths.append(taken)
    return lengths


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_success_with_and_without_noise(task: MujocoTask) -> None:
    lengths = solve(task, [3], 0.0) + solve(task, [57], 0.2)
    assert None not in lengths
    assert max(n for n in lengths if n is not None) <= (120 if task.max_episode_steps == 150 else 230)


def test_needs_its_gripper() -> None:
    assert solve(TASKS[0], [0], 0.0, grip=-1.0) == [None]


def test_takes_a_dropped_object_again() -> None:
    task = load_suite("tabletop_object")[0]
    model = task.build_physics()
    world = Env(model, find_robot(model), compile_goal(task, model), "fast")
    expert = Expert(task, model)
    world.reset(task.init_states[0])
    goal = task.goal[0]
    assert isinstance(goal, In)
    name = goal.body.replace("_main", "_joint0")
    start = world.data.joint(name).qpos.copy()
    dropped = False
    for _ in range(task.max_episode_steps):
        if not dropped and world.data.joint(name).qpos[2] > start[2] + 0.05:
            world.data.joint(name).qpos[:] = start
            world.data.joint(name).qvel[:] = 0.0
            dropped = True
        world.run(expert.act(world.data)[None].astype(np.float32))
        if world.judge().all():
            break
    assert dropped
    assert world.judge().all()
