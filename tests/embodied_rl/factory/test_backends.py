"""Suites of states by name: what the command line runs on is what a program gets from the tasks themselves."""

from __future__ import annotations

import pytest

from embodied_rl.config.env import GymnasiumConfig, MujocoConfig, as_simulator
from embodied_rl.config.suites import SUITES
from embodied_rl.errors import UserError
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.sim.task import TaskSpec
from tests.sim.optional import needs


def check_states(suite: str, name: str, task: TaskSpec) -> None:
    config = as_simulator(MujocoConfig(num_envs=1), SUITES[suite].simulators[0])
    with open_tasks(load(suite, name, config), config) as env:
        assert list(env.train_states[task.name]) == list(task.train_states)
        assert list(env.heldout_states[task.name]) == list(task.heldout_states)
    assert len(task.init_states) == task.heldout_states[-1] + 1
    assert len(set(task.init_states.tolist())) == len(task.init_states)


@needs("envpool")
def test_what_a_program_trains_on_in_envpool_is_not_evaluated_by_the_commands() -> None:
    from embodied_rl.sim.envpool.tasks import load_tasks

    (task,) = load_tasks("fetch", ["FetchReach-v4"])
    check_states("fetch", "FetchReach-v4", task)


@needs("mani_skill")
def test_what_a_program_trains_on_in_maniskill_is_not_evaluated_by_the_commands() -> None:
    from embodied_rl.sim.maniskill.tasks import load_tasks

    (task,) = load_tasks(["PushCube-v1"])
    check_states("maniskill", "PushCube-v1", task)


def test_a_task_that_is_named_twice_is_refused() -> None:
    from embodied_rl.factory.tasks import load_tasks

    with pytest.raises(UserError, match="task 'turn_on_the_stove' is named twice"):
        load_tasks("tabletop_goal", ("turn_on_the_stove", "turn_on_the_stove"))
    with pytest.raises(UserError, match="task 'Pendulum-v1' is named twice"):
        load("gymnasium", ("Pendulum-v1", "Acrobot-v1", "Pendulum-v1"), GymnasiumConfig(num_envs=1))
