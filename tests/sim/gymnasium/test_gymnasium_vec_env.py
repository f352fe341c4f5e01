"""gymnasium environments behind the contract: shared tests, spaces, horizons, seeds, what is refused."""

from __future__ import annotations

import pickle
from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.gymnasium.actions import action_map
from embodied_rl.sim.gymnasium.factory import GymnasiumFactory
from embodied_rl.sim.gymnasium.load import DEFAULT_HORIZON
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.vec_env import VecEnv
from tests.sim.contract import EnvIdContract, LeakContract, SuccessContract, VecEnvContract
from tests.sim.gymnasium import toy_envs

toy_envs.register()
REACH, SEEN, BREAKS, CORRIDOR, OTHER_KEY, NO_SUCCESS, INTEGERS, ONE_BOUND = (
    f"{toy_envs.NAMESPACE}/{name}-v0"
    for name in ("Reach", "ReachSeen", "Breaks", "Corridor", "OtherKey", "NoSuccess", "Integers", "OneBound")
)


def to_goal(state: int, seed: int) -> torch.Tensor:
    """Actions that lead `REACH` to its goal."""
    with closing(GymnasiumVecEnv([REACH], 1)) as env:
        env.reset([0], [EpisodeSpec(0, f"gymnasium/{REACH}", state, seed)])
        obs = env.new_observation(1)
        env.observe([0], obs)
    assert obs.state is not None
    goal = obs.state[0, :2]  # Dict spaces are in the order of their keys
    return (goal * 0.5)[None, None].repeat(1, toy_envs.HORIZON, 1)


class TestReach(VecEnvContract, SuccessContract, EnvIdContract, LeakContract):
    tasks = (f"gymnasium/{REACH}",)
    success = (EpisodeSpec(0, f"gymnasium/{REACH}", 2, 5), to_goal(2, 5))

    def make(self, num_envs: int) -> VecEnv:
        return GymnasiumVecEnv([REACH], num_envs)


class TestImages(VecEnvContract):
    tasks = (f"gymnasium/{SEEN}",)

    def make(self, num_envs: int) -> VecEnv:
        return GymnasiumVecEnv([SEEN], num_envs)


class TestPendulum(VecEnvContract, LeakContract):
    tasks = ("gymnasium/Pendulum-v1",)

    def make(self, num_envs: int) -> VecEnv:
        return GymnasiumVecEnv(["Pendulum-v1"], num_envs)


def row(*values: float) -> Array:
    return np.array(values, np.float32)


def specs(task: str, *rows: tuple[int, int]) -> list[EpisodeSpec]:
    return [EpisodeSpec(i, f"gymnasium/{task}", state, seed) for i, (state, seed) in enumerate(rows)]


def state_of(env: GymnasiumVecEnv, env_id: int) -> torch.Tensor:
    obs = env.new_observation(1)
    env.observe([env_id], obs)
    assert obs.state is not None
    return obs.state[0]


def test_the_initial_state_follows_from_its_row_and_the_steps_from_the_seed() -> None:
    with closing(GymnasiumVecEnv([REACH], 3)) as env:
        env.reset([0, 1, 2], specs(REACH, (4, 1), (4, 2), (5, 1)))
        first, same, other = (state_of(env, i) for i in range(3))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)
        env.step([0, 1], torch.zeros(2, 1, 2))
        assert not torch.equal(state_of(env, 0), state_of(env, 1))  # noise of its own


def test_an_episode_is_that_of_the_plain_environment() -> None:
    plain = gymnasium.make("Pendulum-v1")
    with closing(GymnasiumVecEnv(["Pendulum-v1"], 1)) as env:
        env.reset([0], specs("Pendulum-v1", (3, 0)))
        start = env._sub_envs[0].env.unwrapped.state.copy()  # type: ignore[union-attr, attr-defined]
        plain.reset(seed=0)
        plain.unwrapped.state = start.copy()  # type: ignore[attr-defined]
        actions = np.random.default_rng(0).uniform(-1, 1, (1, 20, 1)).astype(np.float32)
        result = env.step([0], torch.from_numpy(actions))
        for k, action in enumerate(actions[0]):
            observation, reward, *_ = plain.step(2 * action)
            assert result.reward[0, k] == np.float32(reward)
        np.testing.assert_array_equal(state_of(env, 0).numpy(), observation)


def test_bounds_are_stretched_and_a_missing_bound_is_left_alone() -> None:
    box = gymnasium.spaces.Box(row(-2, -np.inf), row(4, np.inf))
    stretch = action_map(box, "Mine-v0").convert
    np.testing.assert_allclose(stretch(row(1, 0.5)), [4, 0.5])
    np.testing.assert_allclose(stretch(row(-1, -1)), [-2, -1])


def test_a_discrete_action_is_the_largest_score() -> None:
    with closing(GymnasiumVecEnv([CORRIDOR], 1)) as env:
        env.reset([0], specs(CORRIDOR, (0, 0)))
        scores = torch.tensor([[[0.1, 0.9, -1.0], [0.0, -0.5, 0.2]]])
        assert env.step([0], scores).reward.tolist() == [[2.0, 3.0]]
        assert (env.info.cameras, env.info.image_shape, env.info.state_dim) == (("image",), (4, 4), 0)
        with pytest.raises(NotImplementedError, match="draws no pictures"):
            env.frame(0, "", 8)


def test_the_horizon_is_the_ids_or_a_thousand_and_only_it_truncates() -> None:
    with closing(GymnasiumVecEnv([REACH], 1)) as env, closing(GymnasiumVecEnv([CORRIDOR], 1)) as endless:
        assert env.info.max_episode_steps == toy_envs.HORIZON
        assert endless.info.max_episode_steps == DEFAULT_HORIZON
        env.reset([0], specs(REACH, (0, 0)))
        result = env.step([0], torch.zeros(1, toy_envs.HORIZON - 1, 2))
        assert not (result.truncated | result.terminated)
        assert env.step([0], torch.zeros(1, 5, 2)).steps_taken.tolist() == [1]


def test_success_is_known_only_where_the_environment_tells() -> None:
    with closing(GymnasiumVecEnv([REACH], 1)) as env, closing(GymnasiumVecEnv(["Pendulum-v1"], 1)) as pendulum:
        assert env.info.has_success
        assert not pendulum.info.has_success


def test_numbers_that_are_not_finite_fail_the_episode() -> None:
    with closing(GymnasiumVecEnv([BREAKS], 1)) as env:
        env.reset([0], specs(BREAKS, (0, 0)))
        result = env.step([0], torch.zeros(1, 5, 2))
        assert result.failed.all()
        assert result.steps_taken.tolist() == [3]
        assert torch.isfinite(state_of(env, 0)).all()
        env.reset([0], specs(BREAKS, (0, 0)))
        assert not env.step([0], torch.zeros(1, 1, 2)).failed.any()


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["Nope-v0"], "gymnasium has no 'Nope-v0'"),
        (["no_such_module:Nope-v0"], "no_such_module"),
        (["LacksItsModule-v0"], "LacksItsModule-v0 needs something that is not installed: .*no_such_module"),
        ([REACH, "Pendulum-v1"], "other observations or actions"),
        ([INTEGERS], f"{INTEGERS}: a Box of int64 is not supported for actions"),
        ([ONE_BOUND], rf"{ONE_BOUND}: action 1 has one bound only \(0 to inf\)"),
        ([], "at least one task"),
        ([""], "gymnasium has no ''"),
        (["\n"], r"gymnasium has no '\\n'"),
        ([":Pendulum-v1"], "gymnasium has no ':Pendulum-v1': write ID, or MODULE:ID"),
        ([":"], "gymnasium has no ':': write ID"),
        ([".module:Pendulum-v1"], "gymnasium has no '.module:Pendulum-v1': write ID"),
    ],
)
def test_what_does_not_exist_or_fit_is_refused(ids: list[str], words: str) -> None:
    if "LacksItsModule-v0" in ids:
        gymnasium.register("LacksItsModule-v0", entry_point="no_such_module:Env")
    with pytest.raises(UserError, match=words):
        GymnasiumVecEnv(ids, 1)


@pytest.mark.parametrize("ids", [[REACH, OTHER_KEY], [OTHER_KEY, REACH]])
def test_each_task_has_the_success_of_its_own_key(ids: list[str]) -> None:
    with closing(GymnasiumVecEnv(ids, 2)) as env:
        assert env.info.has_success
        for task in ids:
            env.reset([1], specs(task, (2, 5)))
            assert env.step([1], to_goal(2, 5)).success.all()


def test_a_suite_has_a_success_where_all_of_its_tasks_have_one() -> None:
    with closing(GymnasiumVecEnv([REACH, NO_SUCCESS], 1)) as env:
        assert not env.info.has_success
        for task, expected in ((REACH, True), (NO_SUCCESS, False)):
            env.reset([0], specs(task, (2, 5)))
            result = env.step([0], to_goal(2, 5))
            assert result.terminated.all()
            assert bool(result.success) == expected


def test_actions_and_env_ids_that_do_not_fit_are_refused_before_anything_moves() -> None:
    with closing(GymnasiumVecEnv([REACH], 2)) as env:
        env.reset([0, 1], specs(REACH, (0, 0), (1, 1)))
        before = state_of(env, 0)
        for actions in (torch.zeros(2, 1, 3), torch.zeros(2, 1, 1), torch.zeros(1, 1, 2), torch.zeros(2, 0, 2)):
            with pytest.raises(ValueError, match=r"actions must be \[2, K, 2\]"):
                env.step([0, 1], actions)
        for ids, words in (([0, 0], "must differ"), ([0, 2], "not in 0..1"), ([-1, 0], "not in 0..1")):
            with pytest.raises(ValueError, match=words):
                env.step(ids, torch.zeros(2, 1, 2))
            with pytest.raises(ValueError, match=words):
                env.reset(ids, specs(REACH, (0, 0), (1, 1)))
        with pytest.raises(ValueError, match=r"not in 0\.\.1"):
            env.observe([-1], env.new_observation(1))
        assert torch.equal(state_of(env, 0), before)


def test_an_env_runs_any_of_the_tasks() -> None:
    with closing(GymnasiumVecEnv([REACH, BREAKS], 1)) as env:
        for task, failed in ((REACH, False), (BREAKS, True), (REACH, False)):
            env.reset([0], specs(task, (0, 0)))
            assert bool(env.step([0], torch.zeros(1, 5, 2)).failed) == failed
        with pytest.raises(ValueError, match="no task"):
            env.reset([0], specs("Other-v0", (0, 0)))


def test_the_factory_can_be_sent_to_another_process() -> None:
    factory = pickle.loads(pickle.dumps(GymnasiumFactory(("Pendulum-v1",))))
    with closing(factory(2)) as env:
        assert env.num_envs == 2
