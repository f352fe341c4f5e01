"""The reward model of a training run: opened, checked against the run's worlds, and pinned by its digest."""

from __future__ import annotations

import dataclasses

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.rewards import open_judge, reward_digest, reward_folder
from embodied_rl.jobs.train_setup import RunSetup
from embodied_rl.rewards.alone_reward import AloneReward
from embodied_rl.rewards.base import Judge, RewardModel
from embodied_rl.rewards.clip import ClipJudge
from embodied_rl.rewards.config import AUTO, RewardConfig
from embodied_rl.rewards.progress import ProgressModel
from embodied_rl.rewards.progress_reward import ProgressReward
from embodied_rl.vec_env import EnvInfo


def pin_reward(setup: RunSetup) -> RunSetup:
    """The setup with its reward model, whose digest is now in the config, which every checkpoint then holds.

    Raises:
        UserError: there is no whole model, it is another one than the run began with, it sees other pictures, or it
            cannot read an instruction.
    """
    asked = setup.config.reward
    if not asked.model:
        return setup
    assert isinstance(setup.config.algorithm, PPOConfig), "the config sees to it"
    folder = reward_folder(asked.model)
    found = reward_digest(folder)
    if asked.digest not in (AUTO, found):
        raise UserError(
            f"{asked.model} holds another reward model ({found[:12]}) than the run began with ({asked.digest[:12]}): "
            "put that one back, or begin a new run."
        )
    judge = open_judge(folder, asked, setup.config.device)
    _check_pictures(judge, setup.env.info, asked)
    if isinstance(judge, ProgressModel) and "instruction" in setup.config.perturb:
        raise UserError(
            f"the reward model in {asked.model} knows the words of its demonstrations, and --perturb instruction says "
            "it in others: leave 'instruction' or the model out."
        )
    if isinstance(judge, ClipJudge):
        judge.check(setup.instructions)
    return dataclasses.replace(
        setup,
        config=dataclasses.replace(setup.config, reward=dataclasses.replace(asked, digest=found)),
        reward_model=_reward_model(judge, setup.config.algorithm, asked, has_success=setup.env.info.has_success),
    )


def _reward_model(judge: Judge, ppo: PPOConfig, asked: RewardConfig, *, has_success: bool) -> RewardModel:
    if asked.alone:
        return AloneReward(judge, gamma=ppo.gamma, weight=asked.weight, has_success=has_success)
    return ProgressReward(judge, gamma=ppo.gamma, weight=asked.weight, bootstrap=ppo.bootstrap_truncated)


def _check_pictures(judge: object, info: EnvInfo, asked: RewardConfig) -> None:
    model = asked.model
    if not info.cameras:
        raise UserError(f"the reward model in {model} judges pictures, and this suite has none: leave it out.")
    if not isinstance(judge, ProgressModel):
        return
    size = judge.config.image_size
    if len(info.cameras) != judge.config.cameras or info.image_shape != (size, size):
        raise UserError(
            f"the reward model in {model} sees {judge.config.cameras} cameras of {size} x {size} pixels, the "
            f"policy {len(info.cameras)} of {info.image_shape[0]} x {info.image_shape[1]}: train one on such data."
        )
