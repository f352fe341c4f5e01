"""Stable-Baselines3 and TorchRL, as they come from the package index, open our gymnasium ids as their pages say."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from embodied_rl.factory.gymnasium_ids import register
from tests.sim.views.test_trainers import need

register()
ID = "embodied_rl/tabletop_goal-v0"
ONE = {"tasks": ["turn_on_the_stove"], "num_threads": 1}
STATE: dict[str, Any] = {**ONE, "cameras": 0, "state": True}
SEEN: dict[str, Any] = {**ONE, "cameras": 1, "image_size": 16}


def first_state(seed: int) -> np.ndarray:
    with closing(gymnasium.make(ID, **STATE)) as env:
        return env.reset(seed=seed)[0]["state"]


def test_stable_baselines_makes_envs_of_a_state(tmp_path: Path) -> None:
    """It asks for render_mode first, and leaves it out on a TypeError."""
    need("stable_baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env
    from stable_baselines3.common.env_util import make_vec_env

    options = {"monitor_dir": str(tmp_path), "monitor_kwargs": {"info_keywords": ("is_success",)}}
    envs = make_vec_env(ID, n_envs=2, seed=5, env_kwargs=STATE, **options)
    with closing(envs):
        assert envs.get_attr("render_mode") == [None, None]
        observation = envs.reset()
        assert isinstance(observation, dict)
        assert np.array_equal(observation["state"], [first_state(5), first_state(6)])
        check_env(envs.envs[0])  # type: ignore[attr-defined]
        PPO("MultiInputPolicy", envs, n_steps=8, batch_size=8, n_epochs=1, device="cpu").learn(16)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.monitor.csv", "1.monitor.csv"]


@pytest.mark.process
def test_stable_baselines_makes_envs_of_pictures_in_processes() -> None:
    need("stable_baselines3")
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # the part before the colon is imported in the new process
    envs = make_vec_env(f"embodied_rl:{ID}", n_envs=1, seed=0, env_kwargs=SEEN, vec_env_cls=SubprocVecEnv)
    with closing(envs):
        assert envs.get_attr("render_mode") == ["rgb_array"]
        envs.reset()
        observation, reward, *_ = envs.step(np.zeros((1, 7), np.float32))
        assert isinstance(observation, dict)
        assert observation["images"].shape == (1, 1, 16, 16, 3)
        assert reward.shape == (1,)
        image = envs.render()
        assert image is not None
        assert image.any()


@pytest.mark.parametrize("options", [STATE, SEEN, {"device": "cpu", **STATE}, {"categorical_action_encoding": True}])
def test_torchrl_opens_and_rolls_out(options: dict[str, Any]) -> None:
    """It always passes `frameskip`, and leaves it out on a TypeError of these words."""
    need("torchrl")
    from torchrl.envs import GymEnv, check_env_specs

    with closing(GymEnv(ID, **ONE | options)) as env:
        env.set_seed(0)
        check_env_specs(env)
        rolled = env.rollout(3)
    assert rolled.batch_size == (3,)
    assert set(rolled["next"].keys()) > {"proprio", "observation" if "state" in options else "images", "reward"}


def test_torchrl_repeats_an_action_as_often_as_frame_skip_says() -> None:
    need("torchrl")
    from torchrl.envs import GymEnv

    seen = []
    for frame_skip, steps in ((1, 8), (4, 2)):
        with closing(GymEnv(ID, frame_skip=frame_skip, **STATE)) as env:
            env.set_seed(3)
            now = env.reset()
            for _ in range(steps):
                now["action"] = torch.full((7,), 0.3)
                now = env.step(now)["next"]
            seen.append(now["observation"])
    assert torch.equal(*seen)


@pytest.mark.parametrize("pixels_only", [True, False])
def test_torchrl_sees_what_is_rendered(pixels_only: bool) -> None:
    need("torchrl")
    from torchrl.envs import GymEnv

    with closing(GymEnv(ID, from_pixels=True, pixels_only=pixels_only, **SEEN)) as env:
        rolled = env.rollout(2)
    assert rolled["pixels"].shape == (2, 256, 256, 3)
    assert ("images" in rolled.keys()) is not pixels_only  # noqa: SIM118 - a TensorDict iterates over rows


@pytest.mark.process
def test_torchrl_rolls_out_in_workers() -> None:
    need("torchrl")
    from torchrl.envs import GymEnv

    with closing(GymEnv(f"embodied_rl:{ID}", num_workers=2, **STATE)) as envs:
        assert envs.rollout(3)["next", "observation"].shape[:2] == (2, 3)
