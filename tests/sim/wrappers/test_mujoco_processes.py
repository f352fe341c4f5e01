"""The CPU engine in watched processes: the same envs, and a crash of one ends nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim import tabletop
from embodied_rl.sim.mujoco.factory import MujocoFactory
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import SimulatorFailed

pytestmark = pytest.mark.process

SLOTS, CHUNK = 3, 4


def factory() -> MujocoFactory:
    tasks = tuple(tabletop.load_suite("tabletop_object")[:2])
    return MujocoFactory(
        tasks,
        "raycast",
        official=False,
        image_size=32,
        threads=1,
        stop_at_success=True,
        cameras=2,
        max_scene_bytes=1 << 28,
    )


def specs() -> list[EpisodeSpec]:
    names = [task.name for task in factory().tasks]
    return [EpisodeSpec(env_id, names[env_id % 2], env_id, env_id) for env_id in range(SLOTS)]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def env(said: list[str]) -> Iterator[ProcessVecEnv]:
    with closing(ProcessVecEnv(factory(), SLOTS, processes=2, say=said.append)) as env:
        yield env


def kill(env: ProcessVecEnv, index: int) -> None:
    process = env._children[index]._process
    assert process is not None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)


def test_worlds_pictures_and_film_frames_are_those_of_this_process(env: ProcessVecEnv, said: list[str]) -> None:
    actions = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (SLOTS, CHUNK, 7)).astype(np.float32))
    with closing(factory()(SLOTS)) as here:
        assert env.info == here.info
        for envs in (here, env):
            envs.reset(range(SLOTS), specs())
        for _ in range(3):
            one, two = here.step(range(SLOTS), actions), env.step(range(SLOTS), actions)
            np.testing.assert_array_equal(one.steps_taken, two.steps_taken)
        seen = [envs.new_observation(SLOTS) for envs in (here, env)]
        here.observe(range(SLOTS), seen[0])
        assert env.observe(range(SLOTS), seen[1]) == []
        np.testing.assert_array_equal(seen[0].images, seen[1].images)
        np.testing.assert_array_equal(seen[0].proprio, seen[1].proprio)
        assert seen[0].instruction == seen[1].instruction
        for env_id in range(SLOTS):
            frame = env.frame(env_id, "agentview", 80)
            assert frame.shape == (80, 80, 3)
            np.testing.assert_array_equal(frame, here.frame(env_id, "agentview", 80))
    assert said == []


def test_a_killed_process_takes_only_its_own_episodes_along(env: ProcessVecEnv, said: list[str]) -> None:
    env.reset(range(SLOTS), specs())
    kill(env, 0)
    result = env.step(range(SLOTS), torch.zeros(SLOTS, CHUNK, 7))
    assert result.failed.tolist() == [True, True, False]
    assert said == ["Simulator process 0 died: replaced, the episodes in it run again."]
    with pytest.raises(SimulatorFailed, match="no frame"):
        env.frame(0, "agentview", 80)
    env.reset([0, 1], specs()[:2])
    assert env.frame(0, "agentview", 80).any()
    assert not env.step(range(SLOTS), torch.zeros(SLOTS, CHUNK, 7)).failed.any()


def test_a_death_while_it_draws_for_a_film_is_said(env: ProcessVecEnv, said: list[str]) -> None:
    env.reset(range(SLOTS), specs())
    kill(env, 1)
    with pytest.raises(SimulatorFailed, match="broke while it rendered"):
        env.frame(2, "agentview", 80)
    assert len(said) == 1


def test_bad_input_is_one_line_and_no_crash(env: ProcessVecEnv, said: list[str]) -> None:
    with pytest.raises(UserError, match=r"^unknown task 'no such task'"):
        env.reset(range(SLOTS), [EpisodeSpec(0, "no such task", 0, 0), *specs()[1:]])
    assert said == []
