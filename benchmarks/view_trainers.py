"""rl_games, rsl_rl and skrl, unmodified, with the settings under which `bench view-learning` lets them learn."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

GAMMA = 0.99
STEPS = 32
"""Control steps of an env between two updates."""
ENVS = 32

Make = Callable[..., Any]
"""Opens the view: make(num_envs=..., seed=...)."""


def rl_games_config(
    seed: int, folder: str | Path, *, num_envs: int = ENVS, epochs: int = 100_000, gamma: float = GAMMA
) -> dict[str, Any]:
    """A whole rl_games config: PPO with a shared MLP; it stops after `epochs` updates."""
    network = {
        "name": "actor_critic",
        "separate": True,
        "space": {
            "continuous": {
                "mu_activation": "None",
                "sigma_activation": "None",
                "mu_init": {"name": "default"},
                "sigma_init": {"name": "const_initializer", "val": -0.5},
                "fixed_sigma": True,
            }
        },
        "mlp": {"units": [128, 128], "activation": "elu", "initializer": {"name": "default"}},
    }
    config = {
        "name": "view",
        "env_name": "embodied_rl",
        "train_dir": str(folder),
        "device": "cpu",
        "device_name": "cpu",
        "multi_gpu": False,
        "torch_compile": False,
        "env_config": {"seed": seed},
        "num_actors": num_envs,
        "reward_shaper": {"scale_value": 10.0},
        "normalize_advantage": True,
        "normalize_input": True,
        "normalize_value": True,
        "value_bootstrap": True,
        "gamma": gamma,
        "tau": 0.95,
        "learning_rate": 1e-3,
        "lr_schedule": "adaptive",
        "kl_threshold": 0.012,
        "score_to_win": 1e9,
        "max_epochs": epochs,
        "save_best_after": 10**9,
        "save_frequency": 0,
        "print_stats": False,
        "grad_norm": 1.0,
        "truncate_grads": True,
        "entropy_coef": 0.0,
        "e_clip": 0.2,
        "horizon_length": STEPS,
        "minibatch_size": num_envs * STEPS // 4,
        "mini_epochs": 5,
        "critic_coef": 2,
        "clip_value": True,
        "ppo": True,
        "mixed_precision": False,
        "bounds_loss_coef": 0.001,
    }
    return {
        "params": {
            "seed": seed,
            "torch_threads": 1,
            "algo": {"name": "a2c_continuous"},
            "model": {"name": "continuous_a2c_logstd"},
            "network": network,
            "config": config,
        }
    }


def rsl_rl_config(seed: int, gamma: float = GAMMA) -> dict[str, Any]:
    """A whole rsl_rl 5 config: PPO with two MLPs."""
    net = {"class_name": "MLPModel", "hidden_dims": [128, 128], "activation": "elu", "obs_normalization": True}
    std = {"class_name": "GaussianDistribution", "init_std": 0.6, "std_type": "scalar"}
    return {
        "seed": seed,
        "num_steps_per_env": STEPS,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": net | {"distribution_cfg": std},
        "critic": dict(net),
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": 5,
            "num_mini_batches": 4,
            "clip_param": 0.2,
            "gamma": gamma,
            "lam": 0.95,
            "value_loss_coef": 1.0,
            "entropy_coef": 0.0,
            "learning_rate": 1e-3,
            "max_grad_norm": 1.0,
            "use_clipped_value_loss": True,
            "schedule": "adaptive",
            "desired_kl": 0.012,
            "rnd_cfg": None,
            "symmetry_cfg": None,
        },
    }


def train_rl_games(make: Make, seed: int, folder: Path, *, gamma: float = GAMMA, **sizes: int) -> None:
    """Let rl_games train until its epochs are over or the env raises; it writes to `folder`."""
    from rl_games.torch_runner import Runner

    from embodied_rl.sim.views.rl_games import register

    register(make)
    runner = Runner()
    runner.load(rl_games_config(seed, folder, gamma=gamma, **sizes))
    runner.run({"train": True, "play": False})


def train_rsl_rl(
    make: Make, seed: int, folder: Path, *, gamma: float = GAMMA, num_envs: int = ENVS, epochs: int = 100_000
) -> None:
    """Let rsl_rl train until its iterations are over or the env raises; it writes nothing."""
    import torch
    from rsl_rl.runners import OnPolicyRunner

    from embodied_rl.sim.views.rsl_rl import RslRlVecEnv

    os.chdir(folder)
    torch.manual_seed(seed)
    env = RslRlVecEnv(make(num_envs=num_envs, seed=seed))
    OnPolicyRunner(env, rsl_rl_config(seed, gamma), log_dir=None, device="cpu").learn(epochs)  # type: ignore[arg-type]


def train_skrl(
    make: Make, seed: int, folder: Path, *, gamma: float = GAMMA, num_envs: int = ENVS, epochs: int = 100_000
) -> None:
    """Let skrl 2 train until its updates are over or the env raises; it writes nothing."""
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils import set_seed

    from embodied_rl.benchmarks.view_skrl import ppo
    from embodied_rl.sim.views.skrl import SkrlVecEnv

    os.chdir(folder)
    set_seed(seed)
    env = SkrlVecEnv(make(num_envs=num_envs, seed=seed))
    options = {
        "timesteps": epochs * STEPS,
        "headless": True,
        "disable_progressbar": True,
        "close_environment_at_exit": False,
    }
    SequentialTrainer(env=env, agents=ppo(env, folder, STEPS, gamma), cfg=options).train()  # type: ignore[arg-type]


TRAINERS: dict[str, Callable[..., None]] = {"rl_games": train_rl_games, "rsl_rl": train_rsl_rl, "skrl": train_skrl}
