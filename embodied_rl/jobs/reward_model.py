"""The reward model of a training run: opened, checked against the run's worlds, and pinned by its digest."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.jobs.train_setup import RunSetup
from embodied_rl.rewards.base import SIMULATOR_REWARD, RewardModel
from embodied_rl.rewards.config import AUTO
from embodied_rl.rewards.progress import digest, load_progress
from embodied_rl.rewards.progress_reward import ProgressReward


def pin_reward(setup: RunSetup) -> RunSetup:
    """The setup with the digest of its reward model in the config, which every checkpoint then holds.

    Raises:
        UserError: there is no whole model, it is another one than the run began with, or it sees other pictures.
    """
    asked, info = setup.config.reward, setup.env.info
    if not asked.model:
        return setup
    model, _ = load_progress(Path(asked.model))
    found = digest(Path(asked.model))
    if asked.digest not in (AUTO, found):
        raise UserError(
            f"{asked.model} holds another reward model ({found[:12]}) than the run began with ({asked.digest[:12]}): "
            "put that one back, or begin a new run."
        )
    size = model.config.image_size
    if len(info.cameras) != model.config.cameras or info.image_shape != (size, size):
        raise UserError(
            f"the reward model in {asked.model} sees {model.config.cameras} cameras of {size} x {size} pixels, the "
            f"policy {len(info.cameras)} of {info.image_shape[0]} x {info.image_shape[1]}: train one on such data."
        )
    config = dataclasses.replace(setup.config, reward=dataclasses.replace(asked, digest=found))
    about = {"reward": f"simulator, and {asked.weight:g} x progress of {asked.model} ({found[:12]}) where it succeeds"}
    return dataclasses.replace(setup, config=config, about=setup.about | about)


def reward_model_of(config: TrainConfig) -> RewardModel:
    """What relabels the batches of a run whose config is pinned."""
    if not config.reward.model:
        return SIMULATOR_REWARD
    assert isinstance(config.algorithm, PPOConfig), "the config sees to it"
    model, _ = load_progress(Path(config.reward.model))
    return ProgressReward(model, gamma=config.algorithm.gamma, weight=config.reward.weight)
