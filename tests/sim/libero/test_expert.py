"""The scripted expert on LIBERO's real tasks: it solves them, it reacts to pushes, and an episode depends on its seed
alone. A spoilt planner fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

from embodied_rl.config.env import MujocoConfig
from embodied_rl.data.collect import Attempt, Bench, record
from embodied_rl.errors import UserError
from embodied_rl.factory.demonstrations import open_bench
from embodied_rl.rng import philox
from embodied_rl.sim.libero.expert import Expert, Surface
from embodied_rl.sim.libero.expert import pick as pick_module
from embodied_rl.sim.libero.protocol import LIBERO
from embodied_rl.sim.libero.tasks import LiberoTask, load_task
from embodied_rl.sim.mujoco.task import Up
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.types import EpisodeSpec
from tests.sim.libero.conftest import REAL_TASKS

BOWL, MILK, STOVE, _, DRAWER = REAL_TASKS
ACROSS = np.array([0.0, 1.0, 0.0])
STATE = 50
"""A training state."""


def attempt(
    task: LiberoTask, seed: int = 1, horizon: int | None = None, slips: Callable[[mujoco.MjData], bool] | None = None
) -> tuple[bool, list[np.ndarray]]:
    """Whether the expert solves an episode within the suite's horizon, and its actions.

    slips: from the control step on at which this holds the fingers are open for ten, whatever it asks for.
    """
    steps = horizon or task.max_episode_steps
    timed = replace(task, max_episode_steps=steps + LIBERO.settle_steps)
    env = MujocoVecEnv([timed], 1, threads=1, stop_at_success=False)
    env.reset([0], [EpisodeSpec(0, task.name, STATE, seed)])
    env.step([0], torch.from_numpy(LIBERO.settle_actions()[None]))
    expert = Expert(task, env.model(0), Surface(env.model(0)), philox(seed))
    actions, open_steps = [], 0
    while True:
        action = expert.act(env.data(0), env.held(0)).astype(np.float32)
        actions.append(action)
        if open_steps or (slips is not None and slips(env.data(0))):
            open_steps += 1
            if open_steps <= 10:
                action = np.append(action[:-1], np.float32(-1.0))
        result = env.step([0], torch.from_numpy(action[None, None]))
        if result.success[0] or result.truncated[0] or result.failed[0]:
            return bool(result.success[0]), actions


@pytest.mark.parametrize("name", [MILK, STOVE, DRAWER])
def test_it_solves_real_tasks(libero_root: Path, name: str) -> None:
    solved, actions = attempt(load_task(libero_root, name))
    assert solved
    assert np.abs(actions).max() <= 1.0


def test_a_handle_that_slips_out_of_its_hand_is_grasped_again(libero_root: Path) -> None:
    task = load_task(libero_root, DRAWER)
    (joint,) = {joint for predicate in task.goal for joint in getattr(predicate, "joints", ())}

    def slips(data: mujoco.MjData) -> bool:
        return abs(float(data.joint(joint).qpos[0])) > 0.03

    _, undisturbed = attempt(task)
    solved, actions = attempt(task, slips=slips)
    assert solved
    assert len(actions) < len(undisturbed) + 90, "it pulls on with nothing in its hand"


def test_a_spoilt_planner_fails(libero_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = pick_module.plan_grasps

    def beside(*args: object, **options: object) -> list[object]:
        return [replace(grasp, position=grasp.position + 0.06 * ACROSS) for grasp in plan(*args, **options)]  # pyright: ignore

    monkeypatch.setattr(pick_module, "plan_grasps", beside)
    assert not attempt(load_task(libero_root, MILK), horizon=150)[0]


def test_demonstrations_depend_on_their_seed_alone(libero_root: Path) -> None:
    milk, stove = load_task(libero_root, MILK), load_task(libero_root, STOVE)
    first = Attempt(0, 0, milk.name, STATE, 11)
    other = Attempt(1, 0, stove.name, STATE + 1, 12)
    config = MujocoConfig(num_envs=1, render_quality="fast", physics_version="current")
    with open_bench([milk, stove], config, LIBERO, 8) as bench:
        episode, reason = record(bench, first, 0.04)
        assert episode is not None
    assert reason == ""
    assert len(episode.images) == len(episode.action) <= milk.max_episode_steps
    pushed = (episode.action != episode.executed).any(axis=1)
    assert pushed.any()
    assert not pushed.all()
    with open_bench([milk, stove], config, LIBERO, 8) as bench:
        assert record(bench, other, 0.04)[1] == ""
        again, _ = record(bench, first, 0.04)
        assert again is not None
    assert _same(episode.action, again.action)
    assert _same(episode.state, again.state)
    assert _same(episode.images, again.images)
    assert isinstance(bench, Bench)


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and bool((first == second).all())


def test_the_seed_decides_among_grasps(libero_root: Path) -> None:
    task = load_task(libero_root, BOWL)
    ends = {tuple(attempt(task, seed, horizon=25)[1][-1]) for seed in range(4)}
    assert len(ends) > 1


def test_a_goal_that_it_has_no_skill_for_is_refused(libero_root: Path) -> None:
    task = load_task(libero_root, MILK)
    model = task.build_physics()
    with pytest.raises(UserError, match="no skill for Up"):
        Expert(replace(task, goal=(Up("milk_1_main"),)), model, Surface(model), philox(0))
