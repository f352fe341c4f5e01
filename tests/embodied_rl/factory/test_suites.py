"""The table of suites and the one door to their envs: what a suite has not is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from embodied_rl.config.env import ENVS, GymnasiumConfig, MujocoConfig
from embodied_rl.config.suites import STATE_SUITES, SUITES, suite_named, usual_env
from embodied_rl.errors import UserError
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import View
from embodied_rl.sim.libero.protocol import protocol
from embodied_rl.sim.mujoco.episodes import TrainingEpisodes


def test_every_suite_runs_in_simulators_that_have_options() -> None:
    assert {name for suite in SUITES.values() for name in suite.simulators} == set(ENVS) - {"custom"}
    assert all(SUITES[name].benchmark == name for name in STATE_SUITES)
    assert suite_named("libero_goal_swap").benchmark == "libero"


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ({"protocol": protocol("openvla")}, "--protocol openvla is one of LIBERO's: it does not apply"),
        ({"run_on": True}, "runs its tasks as they are: leave --at-end"),
        ({"training": TrainingEpisodes(("light",))}, "runs its tasks as they are: leave --at-end and --perturb out"),
        ({"image_size": 32}, "image_size and cameras do not apply to 'gymnasium'"),
    ],
)
def test_tasks_with_a_state_run_as_they_are(view: dict[str, Any], said: str) -> None:
    config = GymnasiumConfig(num_envs=1)
    with pytest.raises(UserError, match=said):
        open_tasks(load("gymnasium", "Pendulum-v1", config), config, View(**view))


@pytest.mark.parametrize(
    ("suite", "config", "said"),
    [
        ("tabletop_goal", GymnasiumConfig(), "runs in simulator mujoco or warp, not gymnasium"),
        ("gymnasium", MujocoConfig(), "runs in simulator gymnasium, not mujoco"),
        ("tabletop_gaol", MujocoConfig(), "unknown suite 'tabletop_gaol'. Did you mean 'tabletop_goal'"),
        ("goal", MujocoConfig(), "Did you mean 'tabletop_goal' or 'libero_goal'"),
    ],
)
def test_what_can_not_be_loaded_is_refused(suite: str, config: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(suite, (), config)


def test_usual_envs_are_of_the_suites_simulator() -> None:
    assert usual_env("gymnasium", 3) == GymnasiumConfig(num_envs=3)
    assert usual_env("libero_10", 2) == MujocoConfig(num_envs=2)
