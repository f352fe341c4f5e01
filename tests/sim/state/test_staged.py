"""Staged rewards are potentials: what shaping adds to an episode depends on its ends alone."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.state.staged import Shaping
from embodied_rl.types import ChunkResult, EpisodeSpec
from tests.sim.state.episodes import DRAWER, STOVE, TWO, expert_actions, open_worlds, random_actions, task

EPISODES = [
    ("tabletop_goal", DRAWER, expert_actions),
    ("tabletop_long", TWO, expert_actions),
    ("tabletop_goal", STOVE, None),
]


def play(
    suite: str, short: str, actions: torch.Tensor, shaping: Shaping | None, chunk: int
) -> tuple[list[ChunkResult], list[float]]:
    """Run an episode from initial state 0 in chunks: the results, and the potential before and after each."""
    results, phis = [], []
    with closing(open_worlds(suite, shaping=shaping)) as env:
        env.reset([0], [EpisodeSpec(0, task(suite, short).name, 0, 0)])
        phis.append(potential(env, shaping))
        for start in range(0, len(actions), chunk):
            results.append(env.step([0], actions[None, start : start + chunk]))
            phis.append(potential(env, shaping))
    return results, phis


def potential(env: MujocoVecEnv, shaping: Shaping | None) -> float:
    slot = env._slots[0]
    assert slot.scene is not None
    return 0.0 if shaping is None else shaping.potential(slot.scene.facts, env.data(0), env.held(0))


def discounted(results: list[ChunkResult], gamma: float) -> float:
    return sum(gamma**t * float(result.reward.double().sum()) for t, result in enumerate(results))


@pytest.mark.parametrize("gamma", [1.0, 0.97])
@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("kind", ["staged", "shaped"])
@pytest.mark.parametrize(("suite", "short", "make"), EPISODES)
def test_the_sum_over_an_episode_telescopes(suite: str, short: str, make, kind, chunk: int, gamma: float) -> None:
    actions = random_actions(60, 3) if make is None else make(suite, short)
    shaping = Shaping(kind, gamma)
    sparse, _ = play(suite, short, actions, None, chunk)
    shaped, phis = play(suite, short, actions, shaping, chunk)
    last = 0.0 if shaped[-1].terminated.all() else phis[-1]
    added = discounted(shaped, gamma) - discounted(sparse, gamma)
    assert added == pytest.approx(gamma ** len(shaped) * last - phis[0], abs=1e-5)
    for one, two in zip(sparse, shaped, strict=True):
        assert torch.equal(one.success, two.success)
        assert torch.equal(one.terminated, two.terminated)
    # paying the potential itself does not telescope
    wrong = sum(gamma**t * phi for t, phi in enumerate(phis[1:]))
    assert kind == "staged" or wrong != pytest.approx(gamma ** len(shaped) * last - phis[0], abs=1e-2)


def test_a_fact_that_holds_is_a_stage() -> None:
    results, phis = play("tabletop_long", TWO, expert_actions("tabletop_long", TWO), Shaping("staged"), 1)
    rewards = [float(result.reward) for result in results]
    assert set(phis) == {0.0, 0.5, 1.0}
    assert sum(rewards) == pytest.approx(1.0)  # the first fact pays a half, the second the other
    assert rewards[-1] == 0.5
    assert rewards.count(0.5) - rewards.count(-0.5) == 2


def test_the_hand_that_comes_closer_raises_a_shaped_potential_only() -> None:
    actions = expert_actions("tabletop_goal", DRAWER)
    half = actions[: len(actions) // 2]
    _, staged = play("tabletop_goal", DRAWER, half, Shaping("staged"), 1)
    _, shaped = play("tabletop_goal", DRAWER, half, Shaping("shaped"), 1)
    assert set(staged) == {0.0}
    assert shaped[-1] > shaped[0] + 0.2
    assert max(shaped) < 0.8
    assert np.all(np.array(shaped) >= 0.0)


def test_rewards_are_sparse_unless_asked() -> None:
    results, _ = play("tabletop_goal", DRAWER, expert_actions("tabletop_goal", DRAWER), None, 7)
    assert sum(float(result.reward.sum()) for result in results) == 1.0


def test_a_discount_out_of_range_is_refused() -> None:
    with pytest.raises(UserError, match="must lie in"):
        Shaping("staged", 1.5)
