"""The agent that skrl trains in `bench view-learning`: PPO with two MLPs. Importing it needs skrl 2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.resources.preprocessors.torch import RunningStandardScaler
from skrl.resources.schedulers.torch import KLAdaptiveLR
from torch import nn

from embodied_rl.sim.views.skrl import SkrlVecEnv


class Actor(GaussianMixin, Model):
    """A Gaussian over actions, whose standard deviation does not depend on what is seen."""

    def __init__(self, env: SkrlVecEnv) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        GaussianMixin.__init__(self)
        self.net = _mlp(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.full((self.num_actions,), -0.5))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        """Means of the actions [N, A]."""
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Critic(DeterministicMixin, Model):
    """A value of what is seen."""

    def __init__(self, env: SkrlVecEnv) -> None:
        Model.__init__(self, observation_space=env.observation_space, action_space=env.action_space, device=env.device)
        DeterministicMixin.__init__(self)
        self.net = _mlp(self.num_observations, 1)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[torch.Tensor, dict[str, Any]]:
        """Values [N, 1]."""
        return self.net(inputs["observations"]), {}


def ppo(env: SkrlVecEnv, folder: Path, steps: int, gamma: float) -> Any:
    """The agent, for `skrl.trainers.torch.SequentialTrainer`; steps: of each env between updates."""
    scaled = {"size": env.observation_space, "device": env.device}
    config = PPO_CFG(
        rollouts=steps,
        learning_epochs=5,
        mini_batches=4,
        discount_factor=gamma,
        learning_rate=1e-3,
        learning_rate_scheduler=KLAdaptiveLR,
        learning_rate_scheduler_kwargs={"kl_threshold": 0.012},
        observation_preprocessor=RunningStandardScaler,
        observation_preprocessor_kwargs=scaled,
        value_preprocessor=RunningStandardScaler,
        value_preprocessor_kwargs={"size": 1, "device": env.device},
        grad_norm_clip=1.0,
        value_loss_scale=2.0,
        time_limit_bootstrap=True,
        rewards_shaper=lambda rewards, *_: rewards * 10.0,
    )
    config.experiment.directory = str(folder)
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    return PPO(
        models={"policy": Actor(env), "value": Critic(env)},
        memory=RandomMemory(memory_size=steps, num_envs=env.num_envs, device=env.device),
        cfg=config,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
    )


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 128), nn.ELU(), nn.Linear(128, 128), nn.ELU(), nn.Linear(128, outputs))
