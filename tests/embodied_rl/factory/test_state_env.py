"""Suites opened for their state, and staged rewards by name."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import embodied_rl as erl
from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.run_config import resolve
from embodied_rl.factory.scenes import scene_envs
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.factory.view import View
from embodied_rl.sim.libero.protocol import protocol
from embodied_rl.sim.render import Choice
from embodied_rl.sim.state.vector import StateLayout
from embodied_rl.types import EpisodeSpec


def test_one_task_has_the_state_of_its_whole_suite() -> None:
    layout = StateLayout.of(load_tasks("tabletop_long"))
    short = next(iter(load_tasks("tabletop_long"))).name.partition("/")[2]
    with erl.make_vec_env("tabletop_long", 2, tasks=(short,), cameras=0, state=True) as env:
        assert env.info.state_dim == layout.dim
        assert env.info.cameras == ()
        env.reset([0, 1], [EpisodeSpec(i, f"tabletop_long/{short}", i, 0) for i in range(2)])
        out = env.new_observation(2)
        env.observe([0, 1], out)
        assert out.state is not None
        assert torch.equal(out.state, env.state([0, 1]))


def test_a_staged_reward_adds_a_potential_with_the_learners_discount() -> None:
    paid = []
    kinds: tuple[tuple[Literal["sparse", "shaped"], float | None], ...] = (
        ("sparse", None),
        ("shaped", 1.0),
        ("shaped", 0.5),
    )
    for reward, gamma in kinds:
        with erl.make_vec_env("tabletop_goal", 1, cameras=0, state=True, reward=reward, gamma=gamma) as env:
            task = next(iter(env.train_states))
            env.reset([0], [EpisodeSpec(0, task, 0, 0)])
            paid.append(float(env.step([0], torch.zeros(1, 1, 7)).reward))
    assert paid[0] == 0.0
    assert paid[2] < min(paid[1], -0.01) < 1.0  # half of the potential, minus all of it


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cameras": 0}, "nothing to act on"),
        ({"state": True, "protocol": "openvla"}, "goes with native"),
        ({"gamma": 0.9}, "goes with --env.reward"),
        ({"reward": "staged", "gamma": 1.1}, "must lie in"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        erl.make_vec_env("tabletop_goal", 1, **options)


def test_a_protocol_pays_for_success() -> None:
    tasks, config = load_tasks("tabletop_goal")[:1], MujocoConfig(num_envs=1, renderer="raycast", reward="staged")
    with (
        pytest.raises(UserError, match="goes with --protocol native"),
        scene_envs(tasks, config, View(image_size=16, protocol=protocol("libero"))),
    ):
        pass


@pytest.mark.parametrize(("algorithm", "gamma"), [(PPOConfig(gamma=0.9), 0.9), (GRPOConfig(), 1.0)])
def test_the_discount_is_the_algorithms(algorithm: PPOConfig | GRPOConfig, gamma: float) -> None:
    tasks, drawn = load_tasks("tabletop_goal")[:1], Choice("raycast", "asked for")
    staged = TrainConfig(device="cpu", algorithm=algorithm, env=MujocoConfig(reward="staged"))
    assert getattr(resolve(staged, drawn, tasks).env, "reward_gamma", None) == gamma
    sparse = TrainConfig(device="cpu", algorithm=algorithm)
    assert getattr(resolve(sparse, drawn, tasks).env, "reward_gamma", 0) is None
