"""Perturbed training episodes in the engine: what an evaluation's variants are, in the scenes of their tasks."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.episodes import TASKS_OWN, TrainingEpisodes
from embodied_rl.sim.mujoco.factory import MujocoFactory
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.perturb import KINDS, Perturber, variant_spec
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.render.raycast import RaycastRenderer
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import EpisodeSpec, Observation

TASKS = load_suite("tabletop_goal")[:2]
SPECS = [EpisodeSpec(i, TASKS[i % 2].name, i, seed=10 + i, perturb_seed=700 + i) for i in range(3)]
PLAIN = [replace(spec, perturb_seed=None) for spec in SPECS]
ACTIONS = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (3, 6, 7)).astype(np.float32))


ALL = TrainingEpisodes(KINDS)


def open_env(training: TrainingEpisodes = ALL, num_envs: int = 3) -> MujocoVecEnv:
    return MujocoVecEnv(
        TASKS, num_envs, image_size=32, renderer=make_renderer("raycast", ()), threads=2, training=training
    )


def play(env: MujocoVecEnv, specs: Sequence[EpisodeSpec]) -> tuple[Observation, np.ndarray]:
    """What is seen and where everything is after a chunk."""
    ids = list(range(len(specs)))
    env.reset(ids, specs)
    env.step(ids, ACTIONS[: len(ids)])
    obs = env.new_observation(len(ids))
    env.observe(ids, obs)
    return obs, np.concatenate([env.data(i).qpos for i in ids])


@pytest.fixture(scope="module")
def perturbed() -> tuple[Observation, np.ndarray]:
    with closing(open_env()) as env:
        return play(env, SPECS)


def test_they_are_what_eval_runs_with_that_seed(perturbed: tuple[Observation, np.ndarray]) -> None:
    perturber = Perturber(TASKS, KINDS)
    asked = [replace(spec, seed=spec.perturb_seed or 0, perturb_seed=None) for spec in SPECS]
    variants = [perturber.variant(spec).task for spec in asked]
    with closing(MujocoVecEnv(variants, 3, image_size=32, renderer=make_renderer("raycast", ()))) as env:
        seen, where = play(env, [variant_spec(spec) for spec in asked])
    assert torch.equal(seen.images, perturbed[0].images)
    assert torch.equal(seen.proprio, perturbed[0].proprio)
    assert seen.instruction == perturbed[0].instruction
    np.testing.assert_array_equal(where, perturbed[1])


def test_every_kind_changes_what_it_should(perturbed: tuple[Observation, np.ndarray]) -> None:
    with closing(open_env(TASKS_OWN)) as env:
        plain, where = play(env, PLAIN)
    assert plain.instruction == [TASKS[i % 2].instruction for i in range(3)]
    for kind in KINDS:
        with closing(open_env(TrainingEpisodes((kind,)))) as env:
            seen, moved = play(env, SPECS)
        assert (seen.instruction != plain.instruction) == (kind == "instruction")
        assert (not np.array_equal(moved, where)) == (kind == "object")
        for row in range(3):
            alike = torch.equal(seen.images[row], plain.images[row])
            assert alike == (kind == "instruction"), (kind, row)


def test_an_episode_without_a_seed_is_the_tasks_own() -> None:
    with closing(open_env()) as env, closing(open_env(TASKS_OWN)) as other:
        play(env, SPECS)  # what was perturbed before leaves nothing
        seen, where = play(env, PLAIN)
        plain, there = play(other, PLAIN)
    assert torch.equal(seen.images, plain.images)
    assert seen.instruction == plain.instruction
    np.testing.assert_array_equal(where, there)


def test_which_env_it_runs_in_changes_nothing(perturbed: tuple[Observation, np.ndarray]) -> None:
    with closing(open_env(num_envs=5)) as env:
        play(env, PLAIN)
        env.reset([4, 1, 2], SPECS)
        env.step([4, 1, 2], ACTIONS)
        obs = env.new_observation(3)
        env.observe([4, 1, 2], obs)
    assert torch.equal(obs.images, perturbed[0].images)
    assert obs.instruction == perturbed[0].instruction


def test_scenes_of_ended_episodes_are_freed() -> None:
    renderer = RaycastRenderer()
    with closing(MujocoVecEnv(TASKS, 2, image_size=8, renderer=renderer, training=ALL)) as env:
        for number in range(12):
            env.reset([number % 2], [replace(SPECS[number % 3], perturb_seed=number)])
        assert len(renderer._scenes) == 2 + 2  # the tasks' own, and one an env
        env.reset([0, 1], PLAIN[:2])
        assert len(renderer._scenes) == 2


def test_an_env_that_perturbs_nothing_says_so() -> None:
    with closing(open_env(TASKS_OWN)) as env, pytest.raises(UserError, match="this environment perturbs nothing"):
        env.reset([0], SPECS[:1])


def test_watched_processes_are_told(perturbed: tuple[Observation, np.ndarray]) -> None:
    asked = MujocoFactory(tuple(TASKS), "raycast", False, 32, 1, True, 2, 1 << 30, training=ALL)
    with closing(pickle.loads(pickle.dumps(asked))(3)) as env:
        seen, _ = play(env, SPECS)
    assert torch.equal(seen.images, perturbed[0].images)


def test_a_perturbation_by_the_episodes_own_seed_is_noticed(perturbed: tuple[Observation, np.ndarray]) -> None:
    """The broken variant: members of a GRPO group, whose seeds differ, would not be perturbed alike."""
    again = [replace(spec, seed=spec.seed + 1) for spec in SPECS]
    with closing(open_env()) as env:
        seen, _ = play(env, again)
        other, _ = play(env, [replace(spec, perturb_seed=spec.seed) for spec in again])
    assert torch.equal(seen.images, perturbed[0].images)
    assert not torch.equal(other.images, perturbed[0].images)
