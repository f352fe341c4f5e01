"""Actions that turn the tabletop's stove on: those of the scripted expert, which saw the simulator's state."""

from __future__ import annotations

from functools import cache

import numpy as np

from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.tabletop.expert import Expert
from embodied_rl.types import Array

SUITE, SHORT = "tabletop_goal", "turn_on_the_stove"


@cache
def stove_actions(row: int) -> Array:
    """float32 [T, 7] from initial state `row` on; the goal holds after the last one, and not before."""
    task = next(task for task in load_suite(SUITE) if task.name == f"{SUITE}/{SHORT}")
    model = task.build_physics()
    world = Env(model, find_robot(model), compile_goal(task, model), "fast")
    expert = Expert(task, model)
    world.reset(task.init_states[row])
    actions = list[Array]()
    while not world.judge().all():
        actions.append(expert.act(world.data).astype(np.float32))
        world.run(actions[-1][None])
        assert len(actions) < task.max_episode_steps
    return np.stack(actions)
