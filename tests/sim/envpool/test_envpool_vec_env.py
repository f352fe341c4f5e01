"""EnvPool's exact episodes: the contract, and what an EpisodeSpec promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.envpool import pools
from embodied_rl.sim.envpool.tasks import EnvPoolTask, load_tasks
from embodied_rl.sim.envpool.vec_env import EnvPoolFactory, EnvPoolVecEnv
from embodied_rl.sim.step_reward import RewardMode
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import (
    EnvIdContract,
    SuccessContract,
    VecEnvContract,
    check_result,
    draw,
    run,
    same_observations,
    same_results,
)
from tests.sim.optional import needs

pytestmark = needs("envpool")


def tasks(suite: str, *names: str) -> tuple[EnvPoolTask, ...]:
    return tuple(load_tasks(suite, names))


def reach_actions(env: VecEnv, spec: EpisodeSpec, steps: int = 60) -> torch.Tensor:
    """Actions float32 [1, T, 4] that bring MetaWorld's hand to the goal, which the state shows."""
    env.reset([0], [spec])
    out, actions = env.new_observation(1), []
    for _ in range(steps):
        env.observe([0], out)
        assert out.state is not None
        hand, goal = out.state[0, :3], out.state[0, 36:39]
        actions.append(torch.cat([(10 * (goal - hand)).clamp(-1, 1), torch.zeros(1)]))
        if env.step([0], actions[-1][None, None]).terminated.any():
            break
    return torch.stack(actions)[None]


class TestMetaWorld(VecEnvContract, SuccessContract, EnvIdContract):
    tasks = ("metaworld/reach-v3", "metaworld/drawer-close-v3")

    @property
    def success(self) -> tuple[EpisodeSpec, torch.Tensor]:
        spec = EpisodeSpec(0, "metaworld/reach-v3", 3, 1)
        with closing(self.make(1)) as env:
            return spec, reach_actions(env, spec)

    def make(self, num_envs: int) -> VecEnv:
        return EnvPoolVecEnv(tasks("metaworld", "reach-v3", "drawer-close-v3"), num_envs)


class TestFetch(VecEnvContract):
    tasks = ("fetch/FetchPickAndPlace-v4",)

    def make(self, num_envs: int) -> VecEnv:
        return EnvPoolVecEnv(tasks("fetch", "FetchPickAndPlace-v4"), num_envs)


class TestPlayground(VecEnvContract):
    tasks = ("playground/PandaPickCube-v1",)

    def make(self, num_envs: int) -> VecEnv:
        return EnvPoolVecEnv(tasks("playground", "PandaPickCube-v1"), num_envs)


class TestControlSuite(VecEnvContract):
    tasks = ("dm_control/pendulum-swingup",)

    def make(self, num_envs: int) -> VecEnv:
        return EnvPoolVecEnv(tasks("dm_control", "pendulum-swingup"), num_envs)


@pytest.mark.parametrize("suite", ["metaworld", "fetch", "playground", "dm_control"])
def test_names_are_told_apart_and_wrong_ones_are_refused(suite: str) -> None:
    found = load_tasks(suite)
    assert len({task.name for task in found}) == len(found) >= 16
    assert all(task.control_hz > 0 and task.instruction and task.max_episode_steps > 0 for task in found)
    assert all((task.success_key is None) == (suite == "dm_control") for task in found if "Panda" in task.env_id)
    with pytest.raises(UserError, match="has no task"):
        load_tasks(suite, ["no-such-task"])
    with pytest.raises(UserError, match="unknown suite"):
        load_tasks("meta", [])


def test_the_goal_of_metaworld_can_be_seen() -> None:
    with closing(EnvPoolVecEnv(tasks("metaworld", "reach-v3"), 2)) as env:
        env.reset([0, 1], [EpisodeSpec(0, "metaworld/reach-v3", state, 0) for state in (0, 1)])
        out = env.new_observation(2)
        env.observe([0, 1], out)
        assert out.state is not None
        assert out.state[:, 36:39].any(dim=1).all()
        assert not torch.equal(out.state[0, 36:39], out.state[1, 36:39])


def test_initial_states_differ_and_those_of_training_are_not_evaluated() -> None:
    (task,) = tasks("fetch", "FetchReach-v4")
    assert len(set(task.init_states.tolist())) == len(task.init_states)
    assert not set(task.train_states) & set(task.heldout_states)
    assert max(task.heldout_states) < len(task.init_states)
    with closing(EnvPoolVecEnv([task], 1)) as env, pytest.raises(UserError, match="initial states 0 to"):
        env.reset([0], [EpisodeSpec(0, task.name, len(task.init_states), 0)])


def test_an_env_holds_tasks_of_one_shape() -> None:
    with pytest.raises(UserError, match="differ in states or actions"):
        EnvPoolVecEnv(tasks("fetch", "FetchReach-v4", "FetchPush-v4"), 1)


def rewards_of(mode: RewardMode) -> tuple[list[float], bool, bool]:
    """Rewards, terminated and success of an episode that reaches its goal within 60 steps."""
    spec = EpisodeSpec(0, "metaworld/reach-v3", 3, 1)
    with closing(EnvPoolVecEnv(tasks("metaworld", "reach-v3"), 1, reward=mode, gamma=0.5)) as env:
        actions = reach_actions(EnvPoolVecEnv(tasks("metaworld", "reach-v3"), 1), spec)
        env.reset([0], [spec])
        result = env.step([0], torch.cat([actions, torch.zeros(1, 5, 4)], dim=1))
        check_result(result, env.info, 1)
        taken = int(result.steps_taken)
        return result.reward[0, :taken].tolist(), bool(result.terminated), bool(result.success)


def test_rewards_are_what_their_mode_says() -> None:
    """Progress is a potential, the native reward over 10 and 0 at both ends, and 1 for success; native ones do not end
    at success. All is one decision, which success ends before its discount."""
    native, ended, success = rewards_of("native")
    assert success
    assert not ended
    progress, ended, success = rewards_of("progress")
    assert ended
    assert success
    assert len(progress) < len(native)
    grown = np.diff([0, *native[: len(progress) - 1], 0]) / 10
    assert progress == pytest.approx(grown + np.eye(len(progress))[-1], abs=1e-6)
    sparse, _, _ = rewards_of("success")
    assert sparse == [0.0] * (len(progress) - 1) + [1.0]


@pytest.mark.parametrize("episodes", ["exact", "throughput"])
def test_a_decision_is_discounted_at_its_last_step(episodes: Literal["exact", "throughput"]) -> None:
    """Two decisions of two steps, from the first to the second."""
    spec, paid = EpisodeSpec(0, "metaworld/reach-v3", 3, 1), {}
    modes: tuple[RewardMode, ...] = ("native", "progress")
    for mode in modes:
        factory = EnvPoolFactory(tasks("metaworld", "reach-v3"), episodes, mode, gamma=0.5)
        with closing(factory(1)) as env:
            env.reset([0], [spec])
            paid[mode] = [each for _ in range(2) for each in env.step([0], torch.ones(1, 2, 4)).reward[0].tolist()]
    one, two, three, four = (each / 10 for each in paid["native"])
    wanted = [one, 0.5 * two - one, three - two, 0.5 * four - three]
    assert paid["progress"] == pytest.approx(wanted, abs=1e-6)


def test_a_task_without_success_is_paid_natively() -> None:
    (task,) = tasks("dm_control", "pendulum-swingup")
    assert "reward native" in EnvPoolVecEnv([task], 1).info.simulator
    with pytest.raises(UserError, match="needs a success"):
        EnvPoolVecEnv([task], 1, reward="progress")


@pytest.mark.process
def test_pictures_in_a_process_of_their_own() -> None:
    """This process may have imported envpool without OpenGL, and must not be left with it."""
    factory = EnvPoolFactory(tasks("fetch", "FetchReach-v4"), image_size=32)
    with closing(ProcessVecEnv(factory, 2, processes=1)) as env:
        spec = EpisodeSpec(0, "fetch/FetchReach-v4", 0, 0)
        env.reset([0, 1], [spec, spec])
        first, second = env.new_observation(1), env.new_observation(1)
        assert not env.observe([0], first)
        assert first.images.shape == (1, 1, 32, 32, 3)
        assert first.images.float().std() > 5
        assert env.frame(0, "default", 48).shape == (48, 48, 3)
        env.observe([1], second)
        same_observations(first, second)
        result, moved = run(env, [0], torch.ones(1, 10, 4))
        assert not result.failed.any()
        assert not torch.equal(moved.images, first.images)
        env.observe([1], second)
        same_observations(first, second)


@pytest.mark.process
def test_processes_give_the_same_episodes() -> None:
    factory = EnvPoolFactory(tasks("metaworld", "push-v3"))
    specs = [EpisodeSpec(i, "metaworld/push-v3", i, i) for i in range(3)]
    actions = torch.cat([draw(factory(1).info, 1, seed=i) for i in range(3)])
    with closing(factory(3)) as here, closing(ProcessVecEnv(factory, 3, processes=2)) as there:
        ends = []
        for env in (here, there):
            env.reset([0, 1, 2], specs)
            ends.append(run(env, [0, 1, 2], actions))
    same_results(ends[0][0], ends[1][0])
    same_observations(ends[0][1], ends[1][1])


MANY_RESETS = """
import gc, os
from pathlib import Path
from embodied_rl.sim.envpool.tasks import load_tasks
from embodied_rl.sim.envpool.vec_env import EnvPoolVecEnv
from embodied_rl.types import EpisodeSpec

def held():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE"), len(os.listdir("/proc/self/task"))

def resets(count):
    for index in range(count):
        env.reset([index % 2], [EpisodeSpec(index, task.name, index, 0)])

(task,) = load_tasks("fetch", ("FetchReach-v4",))
env = EnvPoolVecEnv([task], 2)
resets(100)
before = held()
resets(1_000)
after = held()
print(after[0] - before[0], after[1] - before[1])
"""


@pytest.mark.process
def test_memory_and_threads_stay_flat_over_a_thousand_resets() -> None:
    """In a process of its own: what other tests leave behind comes and goes too. A pool takes 8 MB and 2 threads."""
    ran = subprocess.run([sys.executable, "-c", MANY_RESETS], capture_output=True, text=True, check=True, timeout=3600)
    memory, threads = map(int, ran.stdout.split())
    assert threads <= 0
    assert memory < 100 << 20  # of 8 GB that a thousand pools take; the allocator's own noise is about 40 MB


def test_the_horizon_is_the_tasks_and_may_be_changed() -> None:
    """Shorter and longer than EnvPool's own 50 steps."""
    (task,) = tasks("fetch", "FetchReach-v4")
    for horizon in (7, 60):
        with closing(EnvPoolVecEnv([replace(task, max_episode_steps=horizon)], 1)) as env:
            env.reset([0], [EpisodeSpec(0, task.name, 0, 0)])
            result = env.step([0], torch.zeros(1, 70, env.info.action_dim))
            assert env.info.max_episode_steps == int(result.steps_taken) == horizon
            assert result.truncated.all()


@pytest.mark.parametrize("factory", [EnvPoolFactory, partial(EnvPoolFactory, episodes="throughput")])
def test_a_world_that_breaks_shows_its_last_sound_state(
    factory: Callable[..., EnvPoolFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not numbers that are not finite, which would spoil whatever is computed of the rows of a batch together."""
    (task,) = tasks("metaworld", "reach-v3")
    with closing(factory((task,))(1)) as env:
        env.reset([0], [EpisodeSpec(0, task.name, 0, 0)])
        _, before = run(env, [0], torch.zeros(1, 3, 4))
        monkeypatch.setattr(pools, "flat_state", lambda observation: np.full((1, 39), np.nan, np.float32))
        result, after = run(env, [0], torch.zeros(1, 3, 4))
        assert result.failed.all()
        assert result.steps_taken.tolist() == [1]
        assert not result.reward.any()
    same_observations(before, after)
