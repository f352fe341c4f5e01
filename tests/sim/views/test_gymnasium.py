"""Our simulators as gymnasium environments: the checker, seeds, episodes that follow each other, ids."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from embodied_rl.errors import UserError
from embodied_rl.factory.gymnasium_ids import gymnasium_ids, register
from embodied_rl.sim import tabletop
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.sim.views.gymnasium import GymnasiumEnv, GymnasiumVectorEnv, draw_episode
from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import EpisodeSpec, Observation
from embodied_rl.utils.suites import TABLETOP_SUITES
from embodied_rl.vec_env import SimulatorFailed
from tests.sim.gymnasium import toy_envs

toy_envs.register()
register()
REACH, SEEN, BREAKS = (f"gymnasium/{toy_envs.NAMESPACE}/{name}-v0" for name in ("Reach", "ReachSeen", "Breaks"))
STATES = {REACH: range(8)}
TABLETOP: dict[str, Any] = {"tasks": ["turn_on_the_stove"], "num_threads": 1}


def vec_env(task: str, num_envs: int) -> GymnasiumVecEnv:
    return GymnasiumVecEnv([task.removeprefix("gymnasium/")], num_envs)


@pytest.fixture
def vector() -> Iterator[GymnasiumVectorEnv]:
    with closing(GymnasiumVectorEnv(vec_env(REACH, 3), STATES, render_mode="rgb_array")) as env:
        yield env


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("task", [REACH, SEEN])
def test_a_single_env_passes_gymnasiums_checker(task: str) -> None:
    with closing(GymnasiumEnv(vec_env(task, 1), {task: range(8)}, render_mode="rgb_array")) as env:
        assert set(env.observation_space.spaces) == {"state"} | ({"images"} if task == SEEN else set())  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # bounds at infinity
            check_env(env)
        env.reset(seed=0)
        image = env.render()
        assert image is not None
        assert image.shape == (256, 256, 3)


def test_a_tabletop_suite_passes_gymnasiums_checker() -> None:
    env = gymnasium.make("embodied_rl/tabletop_goal-v0", **TABLETOP, image_size=16, state=True, render_mode="rgb_array")
    with closing(env), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert set(env.observation_space.spaces) == {"images", "proprio", "state"}  # type: ignore[attr-defined]
        check_env(env.unwrapped, skip_render_check=True)


def test_a_tabletop_suite_is_made_as_a_vector_without_images() -> None:
    options = {**TABLETOP, "cameras": 0, "state": True}
    envs = gymnasium.make_vec("embodied_rl/tabletop_goal-v0", num_envs=2, **options)
    with closing(envs):
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert envs.autoreset_mode is AutoresetMode.SAME_STEP  # type: ignore[attr-defined]
        observation, infos = envs.reset(seed=4)
        assert envs.observation_space.contains(observation)
        assert infos["instruction"].tolist() == ["turn on the stove"] * 2
        observation, reward, *_ = envs.step(envs.action_space.sample())
        assert envs.observation_space.contains(observation)
        assert reward.shape == (2,)


@pytest.mark.parametrize("mode", ["sync", "vector_entry_point"])
def test_gymnasiums_own_vector_envs_and_wrappers_run_a_suite(mode: str) -> None:
    envs = gymnasium.make_vec(
        "embodied_rl/tabletop_goal-v0", num_envs=2, vectorization_mode=mode, **TABLETOP, cameras=0, state=True
    )
    with closing(gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)) as recorded:
        first, _ = recorded.reset(seed=4)
        assert isinstance(envs.autoreset_mode, AutoresetMode)  # type: ignore[attr-defined]
        again, *_ = recorded.reset(seed=[4, 5])  # type: ignore[arg-type]
        assert same(first, again)
        observation, reward, *_ = recorded.step(recorded.action_space.sample())
        assert observation["state"].shape[0] == len(reward) == 2


def test_env_i_of_a_vector_runs_what_a_single_env_of_its_seed_runs(vector: GymnasiumVectorEnv) -> None:
    steps = 40  # several episodes
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, 3, 2)).astype(np.float32)
    first, _ = vector.reset(seed=10)
    seen: list[tuple[Any, ...]] = [(first, None, None, None, {})]
    seen += [vector.step(action) for action in actions]
    ends = 0
    for env_id in range(3):
        with closing(GymnasiumEnv(vec_env(REACH, 1), STATES)) as single:
            observation, _ = single.reset(seed=10 + env_id)
            assert same(observation, {name: values[env_id] for name, values in first.items()})
            for step, action in enumerate(actions, 1):
                observation, reward, terminated, truncated, info = single.step(action[env_id])
                both, rewards, terminations, truncations, infos = seen[step]
                assert (rewards[env_id], terminations[env_id], truncations[env_id]) == (reward, terminated, truncated)
                if terminated or truncated:
                    ends += 1
                    assert same(observation, infos["final_obs"][env_id])
                    assert infos["_final_obs"][env_id]
                    assert infos["final_info"]["is_success"][env_id] == info["is_success"]
                    observation, _ = single.reset()
                elif "final_obs" in infos:
                    assert not infos["_final_obs"][env_id]
                assert same(observation, {name: values[env_id] for name, values in both.items()})
    assert ends >= 9
    assert any(row[2].any() for row in seen[1:]) or any(row[3].any() for row in seen[1:])


def test_seeds_and_masks_that_do_not_fit_are_refused(vector: GymnasiumVectorEnv) -> None:
    first, _ = vector.reset(seed=3)
    again, _ = vector.reset(seed=np.int64(3))  # type: ignore[arg-type]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    with pytest.raises(ValueError, match="1 seeds for 3 envs"):
        vector.reset(seed=[1])
    with pytest.raises(ValueError, match="reset_mask must be bool"):
        vector.reset(options={"reset_mask": np.array([True])})


def test_a_mask_resets_some_envs_and_leaves_the_others(vector: GymnasiumVectorEnv) -> None:
    before, _ = vector.reset(seed=1)
    moved, *_ = vector.step(np.full((3, 2), 0.5, np.float32))
    after, infos = vector.reset(seed=[None, 7, None], options={"reset_mask": np.array([False, True, False])})
    assert infos["_task"].tolist() == [False, True, False]
    assert np.array_equal(after["state"][[0, 2]], moved["state"][[0, 2]])
    with closing(GymnasiumEnv(vec_env(REACH, 1), STATES)) as single:
        assert np.array_equal(after["state"][1], single.reset(seed=7)[0]["state"])
    again, _ = vector.reset(seed=1)
    assert same(before, again)
    images = vector.render()
    assert images is not None
    assert [image.shape for image in images] == [(256, 256, 3)] * 3


def test_what_was_returned_is_not_changed_by_later_steps(vector: GymnasiumVectorEnv) -> None:
    first, _ = vector.reset(seed=1)
    kept = first["state"].copy()
    vector.step(np.ones((3, 2), np.float32))
    assert np.array_equal(first["state"], kept)


def test_an_episode_that_breaks_is_truncated_and_says_so() -> None:
    with closing(GymnasiumVectorEnv(vec_env(BREAKS, 2), {BREAKS: range(4)})) as env:
        env.reset(seed=0)
        for _ in range(2):
            *_, truncated, infos = env.step(np.zeros((2, 2), np.float32))
            assert not truncated.any()
        *_, terminated, truncated, infos = env.step(np.zeros((2, 2), np.float32))
        assert truncated.all()
        assert not terminated.any()
        assert infos["final_info"]["failed"].all()
        assert not env.step(np.zeros((2, 2), np.float32))[3].any()


class Blind(VecEnvWrapper):
    """Cannot be observed in the envs `lost`; its rows stay as they were allocated."""

    lost: frozenset[int] = frozenset()

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        full = self.new_observation(len(env_ids))
        super().observe(env_ids, full)
        rows = [row for row, env_id in enumerate(env_ids) if env_id not in self.lost]
        assert out.state is not None
        assert full.state is not None
        out.state[rows] = full.state[rows]
        for row in rows:
            out.instruction[row] = full.instruction[row]
        return [row for row, env_id in enumerate(env_ids) if env_id in self.lost] or None


def test_an_episode_that_can_not_be_observed_is_truncated_at_its_last_sound_observation() -> None:
    world = Blind(vec_env(REACH, 1))
    with closing(GymnasiumEnv(world, STATES)) as env:
        env.reset(seed=0)
        sound, *_ = env.step(np.zeros(2, np.float32))
        world.lost = frozenset({0})
        observation, _, terminated, truncated, info = env.step(np.ones(2, np.float32))
        assert same(observation, sound)
        assert (terminated, truncated, info["failed"]) == (False, True, True)
        with pytest.raises(SimulatorFailed, match=f"'{REACH}', initial state 3, began"):
            env.reset(options={"init_state": 3})
        world.lost = frozenset()
        assert not env.reset(seed=0)[1]["failed"]


def test_of_a_vector_only_what_can_not_be_observed_is_truncated() -> None:
    world = Blind(vec_env(REACH, 3))
    with closing(GymnasiumVectorEnv(world, STATES)) as env:
        env.reset(seed=0)
        sound, *_ = env.step(np.zeros((3, 2), np.float32))
        begun: list[list[int]] = []

        def reset_and_recover(env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
            begun.append(list(env_ids))
            world.lost = frozenset()
            VecEnvWrapper.reset(world, env_ids, episodes)

        world.lost = frozenset({1})
        world.reset = reset_and_recover  # type: ignore[method-assign]
        after, _, terminated, truncated, infos = env.step(np.zeros((3, 2), np.float32))
        assert begun == [[1]]
        assert (terminated.tolist(), truncated.tolist()) == ([False] * 3, [False, True, False])
        assert infos["final_info"]["failed"].tolist() == [False, True, False]
        assert np.array_equal(infos["final_obs"][1]["state"], sound["state"][1])
        assert not np.array_equal(after["state"][1], sound["state"][1])  # its next episode
        assert all(np.abs(after["state"]).max(axis=1) > 0)
        assert infos["failed"].tolist() == [False] * 3
        del world.reset  # type: ignore[method-assign]
        world.lost = frozenset({2})
        with pytest.raises(SimulatorFailed, match="began: reset"):
            env.reset(options={"reset_mask": np.array([False, False, True])})


def test_an_episode_can_be_chosen() -> None:
    random, states = np.random.default_rng(0), {"a/x": range(4), "a/y": [7]}
    spec = draw_episode(states, random, 0, {"task": "a/y", "init_state": 7})
    assert (spec.task, spec.init_state) == ("a/y", 7)
    drawn = {draw_episode(states, random, i, None).task for i in range(50)}
    assert drawn == {"a/x", "a/y"}
    assert draw_episode(states, random, 0, {"task": "y"}).task == "a/y"
    with pytest.raises(ValueError, match="several tasks are called 'y'"):
        draw_episode({"a/y": [1], "b/y": [1]}, random, 0, {"task": "y"})
    for options in ({"task": "a/z"}, {"task": ""}, {"task": "a"}, {"task": "a/x", "init_state": 7}, {"speed": 1}):
        with pytest.raises(ValueError):
            draw_episode(states, random, 0, options)


def test_the_discount_of_a_shaped_reward_is_the_learners() -> None:
    """The potential's difference is gamma times the next one's less this one's, so it tells which gamma was used."""
    rewards = []
    for gamma in (1.0, 0.5):
        options = {**TABLETOP, "cameras": 0, "state": True, "reward": "shaped", "gamma": gamma}
        env = gymnasium.make("embodied_rl/tabletop_goal-v0", **options)
        with closing(env):
            env.reset(seed=0)
            rewards.append(float(env.step(np.zeros(7, np.float32))[1]))
    assert rewards[0] != rewards[1]


def test_every_suite_has_an_id() -> None:
    assert tabletop.suites() == TABLETOP_SUITES
    assert set(gymnasium_ids()) <= set(gymnasium.registry)
    assert gymnasium_ids()["embodied_rl/libero_10-v0"] == "libero_10"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"render_mode": "rgb_array", "cameras": 0, "state": True}, "'render_mode': with cameras=0 nothing is drawn"),
        ({"split": "test"}, "split must be"),
        ({"tasks": ["nope"]}, "has no task 'nope'"),
        ({"image_sise": 16}, "argument 'image_sise'. Did you mean 'image_size'"),
        ({"protocol_name": "openvla"}, "argument 'protocol_name'. Known: cameras, gamma"),
        ({"gamma": 0.9}, "reward-gamma goes with"),
        ({"reward": "shaped", "gamma": 1.5}, r"must lie in \[0, 1\], got 1.5"),
    ],
)
def test_what_can_not_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        gymnasium.make("embodied_rl/tabletop_goal-v0", **options)


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
@pytest.mark.parametrize("options", [{"frameskip": 4}, {"render_mode": "rgb_array", "cameras": 0, "state": True}])
def test_options_of_other_environments_are_pythons_type_error(make: Any, options: dict[str, Any]) -> None:
    """Trainers try them, and go on without those that these words name."""
    name = next(iter(options))
    with pytest.raises(TypeError, match=rf"__init__\(\) got an unexpected keyword argument '{name}'") as raised:
        make("embodied_rl/tabletop_goal-v0", **options)
    assert isinstance(raised.value, UserError)


def test_a_suite_without_cameras_passes_gymnasiums_checker_with_its_renders() -> None:
    env = gymnasium.make("embodied_rl/tabletop_goal-v0", **TABLETOP, cameras=0, state=True)
    with closing(env), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(env.unwrapped)


@pytest.mark.process
@pytest.mark.parametrize("first", ["embodied_rl", "gymnasium"])
def test_both_imports_register_the_ids_and_ours_imports_nothing_heavy(first: str) -> None:
    other = {"embodied_rl": "gymnasium", "gymnasium": "embodied_rl"}[first]
    code = f"""
import sys
import {first}
assert {first!r} != 'embodied_rl' or not {{'gymnasium', 'torch', 'numpy'}} & set(sys.modules)
import {other}
assert 'embodied_rl/tabletop_spatial-v0' in sys.modules['gymnasium'].registry
assert not {{'torch', 'mujoco'}} & set(sys.modules)
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
