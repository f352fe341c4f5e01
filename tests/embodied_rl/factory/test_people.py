"""The built-in suites' scripted expert in a person's place: it ends episodes as `collect` records them."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch

from embodied_rl.config.env import GymnasiumConfig, MujocoConfig
from embodied_rl.data.collect import Attempt, record
from embodied_rl.errors import UserError
from embodied_rl.factory.demonstrations import open_bench, with_people
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import View
from embodied_rl.sim.libero.protocol import NATIVE
from embodied_rl.sim.wrappers.takeover import TakeoverRule
from embodied_rl.types import EpisodeSpec

SUITE, NAMES = "tabletop_goal", ("turn_on_the_stove", "open_the_drawer_of_the_cabinet")
STATES = View(cameras=0, state=True)


def test_from_the_first_step_on_it_does_what_collect_records() -> None:
    config = MujocoConfig(num_envs=2, num_threads=1)
    tasks = load(SUITE, NAMES, config)
    specs = [EpisodeSpec(i, task.name, 3 + i, 40 + i) for i, task in enumerate(tasks.scenes)]
    with ExitStack() as stack:
        bench = stack.enter_context(open_bench(tasks.scenes, config, NATIVE, 8))
        recorded = [record(bench, Attempt(i, i, s.task, s.init_state, s.seed), 0.0)[0] for i, s in enumerate(specs)]
        plain = stack.enter_context(open_tasks(tasks, config, STATES))
        env = with_people(plain, tasks.scenes, TakeoverRule("share", after=1, share=1.0))
        env.reset([1, 0], specs)  # not as they are numbered
        result = env.step([1, 0], torch.zeros(2, 150, 7))
    assert result.success.all()
    assert result.executed is not None
    assert result.human.tolist() == result.steps_taken.tolist()
    for row, episode in enumerate(recorded):
        steps = len(episode.executed)
        assert int(result.steps_taken[row]) == steps
        np.testing.assert_array_equal(result.executed[row, :steps], episode.executed)


def test_it_goes_on_from_where_the_policy_left_the_arm() -> None:
    config = MujocoConfig(num_envs=1, num_threads=1)
    tasks = load(SUITE, NAMES[:1], config)
    astray = torch.tensor([0.4, -0.6, 0.2, 0.0, 0.0, 0.0, 1.0]).expand(1, 4, 7)
    with open_tasks(tasks, config, STATES) as plain:
        env = with_people(plain, tasks.scenes, TakeoverRule("late", after=30))
        env.reset([0], [EpisodeSpec(0, tasks.scenes[0].name, 3, 7)])
        human = 0
        for _ in range(38):
            result = env.step([0], astray)
            human += int(result.human)
            if result.terminated or result.truncated:
                break
    assert result.success.all()
    assert 20 < human < 120


@pytest.mark.process
def test_what_it_cannot_look_into_is_refused() -> None:
    config = MujocoConfig(num_envs=1, num_threads=1, processes=1)
    tasks = load(SUITE, NAMES[:1], config)
    with open_tasks(tasks, config, STATES) as apart, pytest.raises(UserError, match=r"leave --env\.processes out"):
        with_people(apart, tasks.scenes, TakeoverRule())


def test_a_suite_without_an_expert_is_refused() -> None:
    config = GymnasiumConfig(num_envs=1)
    tasks = load("gymnasium", ["CartPole-v1"], config)
    with open_tasks(tasks, config) as env, pytest.raises(UserError, match="no scripted expert"):
        with_people(env, tasks.scenes, TakeoverRule())
