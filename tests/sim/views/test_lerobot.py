"""Our suites in the form that LeRobot steps: same pictures and successes, envs that wait, initial states in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import embodied_rl as erl
from embodied_rl.sim.views.lerobot import NEW_ROLLOUT, LeRobotVectorEnv
from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import Array, EpisodeSpec, Observation
from embodied_rl.vec_env import SimulatorFailed
from tests.stove_actions import SHORT, SUITE, stove_actions
from tests.toy_world import HELDOUT, HORIZON, ToyEnv

REACH = "toy/reach"
STATES = HELDOUT[REACH]
OPTIONS: dict[str, Any] = {"tasks": SHORT, "image_size": 16, "num_threads": 1}


def toy(num_envs: int, env: Any = None) -> LeRobotVectorEnv:
    world = env or ToyEnv(num_envs)
    return LeRobotVectorEnv(lambda: world, world.info, num_envs, REACH, STATES)


def to_goal(observation: dict[str, Any]) -> Array:
    """Actions that bring the toy's points to the red corners."""
    goals = np.array([np.argwhere(picture[..., 0])[0][::-1] for picture in observation["pixels"]["image"]])
    return (goals / 4 * 2 - 1 > 0) * 1.6 - 0.8 - observation["agent_pos"]


@pytest.mark.parametrize("protocol", ["native", "lerobot"])
def test_actions_lead_where_they_lead_without_the_view_bit_for_bit(protocol: str) -> None:
    """An expert's from one initial state, which succeed early, and noise beside it; under `lerobot` after settling."""
    opened = partial(erl.make_vec_env, SUITE, 2, protocol=protocol, **OPTIONS)
    with opened() as env:
        ((task, states),) = env.heldout_states.items()
        expert = stove_actions(states[0])
        length = 40 + len(expert)
        noise = np.random.default_rng(0).uniform(-1, 1, (length, 7)).astype(np.float32)
        padded = np.concatenate([expert, noise])[:length]
        plays = np.stack([padded, noise], axis=1)

        env.reset([0, 1], [EpisodeSpec(n, task, states[n], n) for n in range(2)])
        direct, ended = [look(env)], [length, length]
        for number, actions in enumerate(plays):
            alive = [row for row in range(2) if number < ended[row]]
            result = env.step(alive, torch.from_numpy(actions[alive])[:, None])
            for place, row in enumerate(alive):
                if result.terminated[place] or result.truncated[place]:
                    ended[row] = number + 1
                    assert bool(result.success[place]) == (row == 0)
            direct.append(look(env))
        info = env.info
    assert ended[0] < length == ended[1]
    assert ended[0] == len(expert) or protocol != "native"

    with closing(LeRobotVectorEnv(opened, info, 2, task, states)) as view:
        observation, _ = view.reset(seed=[0, 1])
        assert view.observation_space.contains(observation)
        shown = [observation]
        successes, rewards = np.zeros((length, 2), bool), np.zeros((length, 2))
        for number, actions in enumerate(plays):
            observation, rewards[number], terminated, truncated, infos = view.step(actions)
            assert (terminated | truncated).tolist() == [number + 1 >= ended[0], False]
            successes[number] = infos["is_success"]
            shown.append(observation)
    for row in range(2):
        for number in range(length + 1):
            want = direct[min(number, ended[row])]
            for camera, name in enumerate(("image", "image2")):
                assert np.array_equal(shown[number]["pixels"][name][row], want.images[row, camera])
            assert np.array_equal(shown[number]["agent_pos"][row], want.proprio[row])
    assert successes.any(0).tolist() == [True, False]
    assert rewards.sum(0).tolist() == [1.0, 0.0]  # once, however long an env waits


def look(env: Any) -> Observation:
    out = env.new_observation(2)
    env.observe([0, 1], out)
    return out


def test_the_lerobot_protocol_shows_mirrored_pictures_and_has_its_horizon() -> None:
    with erl.make_vec_env(SUITE, 1, **OPTIONS, protocol="lerobot") as env:
        ((task, states),) = env.heldout_states.items()
        with closing(LeRobotVectorEnv(lambda: env, env.info, 1, task, states)) as view:
            observation, _ = view.reset(seed=[0])
            assert np.array_equal(observation["pixels"]["image"][0, :, ::-1], env.frame(0, "agentview", 16))
            assert view.call("_max_episode_steps") == (300,)
            assert view.call("task_description") == ("turn on the stove",)
            assert view.call("task") == (SHORT,)


def test_an_env_that_ended_waits_while_others_go_on() -> None:
    """The toy refuses to step one whose episode is over; the view shows and says the same until it is reset."""
    with closing(toy(2)) as view:
        assert view.metadata["autoreset_mode"] is AutoresetMode.DISABLED
        first, _ = view.reset(seed=[0, 1])
        last: list[Any] = []
        observation = first
        for _ in range(HORIZON):
            actions = to_goal(observation)
            actions[1] = 0
            observation, reward, terminated, truncated, info = view.step(actions)
            if terminated[0]:
                last.append((observation["agent_pos"][0].tolist(), terminated[0], truncated[0], info["is_success"][0]))
                assert reward[0] == (len(last) == 1)
        assert 1 < len(last) < HORIZON
        assert all(said == last[0] for said in last)
        assert truncated.tolist() == [False, True]
        assert info["is_success"].tolist() == [True, False]
        observation, reward, terminated, truncated, info = view.step(np.zeros((2, 2)))  # all wait
        assert not reward.any()
        again, info = view.reset(seed=[0, 1], options={NEW_ROLLOUT: True})
        assert np.array_equal(again["agent_pos"], first["agent_pos"])
        assert not info["is_success"].any()


@pytest.mark.parametrize("num_envs", [1, 3, 5])
def test_seeds_in_a_row_run_every_initial_state_once_whatever_the_number_of_envs(num_envs: int) -> None:
    """Also from 1000 on, where lerobot-eval begins, and without seeds."""
    for start in (1000, None):
        world = ToyEnv(num_envs)
        with closing(toy(num_envs, world)) as view:
            for batch in range(-(-len(STATES) // num_envs)):
                begin = None if start is None else start + batch * num_envs
                view.reset(seed=None if begin is None else [begin + row for row in range(num_envs)])
                for _ in range(HORIZON):
                    view.step(np.zeros((num_envs, 2)))
        states = [spec.init_state for spec in world.started]
        offset = (start or 0) % len(STATES)
        assert states == [STATES[(offset + n) % len(STATES)] for n in range(len(states))]
        assert set(states) == set(STATES)


def test_a_mask_resets_some_envs_and_other_options_are_refused() -> None:
    with closing(toy(2)) as view:
        view.reset(seed=0)
        for _ in range(HORIZON):
            before, *_ = view.step(np.zeros((2, 2)))
        after, _ = view.reset(seed=[7, 8], options={"reset_mask": np.array([False, True])})
        assert np.array_equal(after["agent_pos"][0], before["agent_pos"][0])
        assert not np.array_equal(after["agent_pos"][1], before["agent_pos"][1])
        _, _, terminated, truncated, _ = view.step(np.zeros((2, 2)))
        assert (terminated | truncated).tolist() == [True, False]
        with pytest.raises(ValueError, match=r"no other options: got \{'init_state': 3\}"):
            view.reset(options={"init_state": 3})
        with pytest.raises(ValueError, match="1 seeds for 2 envs"):
            view.reset(seed=[1])


class Counted(VecEnvWrapper):
    opened = closed = 0

    def __init__(self) -> None:
        super().__init__(ToyEnv(1))
        Counted.opened += 1

    def close(self) -> None:
        Counted.closed += 1


@pytest.fixture
def counted() -> Iterator[type[Counted]]:
    yield Counted
    Counted.opened = Counted.closed = 0


def test_the_simulator_opens_at_the_first_use_and_closes_once(counted: type[Counted]) -> None:
    """LeRobot makes the envs of all tasks first, and closes each twice."""
    view = LeRobotVectorEnv(counted, ToyEnv(1).info, 1, REACH, STATES)
    assert view.single_action_space.shape == (2,)
    assert counted.opened == 0
    view.reset(seed=[0])
    assert view.render()[0].shape == (4, 4, 3)
    assert view.call("render")[0].shape == (4, 4, 3)
    view.close()
    view.close()
    assert (counted.opened, counted.closed) == (1, 1)
    with pytest.raises(gymnasium.error.ClosedEnvironmentError, match="task 'toy/reach' are closed"):
        view.reset()
    with pytest.raises(AttributeError, match="no attribute 'pixels'"):
        view.get_attr("pixels")
    LeRobotVectorEnv(counted, ToyEnv(1).info, 1, REACH, STATES).close()  # never used
    assert (counted.opened, counted.closed) == (1, 1)


def test_a_simulator_that_breaks_ends_the_evaluation_and_says_which_episode() -> None:
    with closing(toy(2, ToyEnv(2, broken=[(REACH, STATES[1])]))) as view:
        view.reset(seed=[0, 1])
        view.step(np.zeros((2, 2)))
        with pytest.raises(SimulatorFailed, match=rf"task 'toy/reach', initial state {STATES[1]}: .* \(task_ids\)"):
            view.step(np.zeros((2, 2)))
