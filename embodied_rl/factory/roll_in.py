"""The policy that begins the episodes of `collect --roll-in`."""

from __future__ import annotations

import numpy as np
import torch

from embodied_rl.data.roll_in import RollIn
from embodied_rl.errors import UserError
from embodied_rl.factory.backends import need_images
from embodied_rl.factory.envs import describe_policy, open_policy
from embodied_rl.policy import action_array
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Array, Observation
from embodied_rl.vec_env import EnvInfo


def open_roll_in(checkpoint: str, info: EnvInfo) -> tuple[RollIn, str]:
    """The policy of a checkpoint, which samples as in training, for up to half of the longest task's time.

    Returns:
        It, and what a data set says of it, its weights' digest among that.

    Raises:
        UserError: there is no such checkpoint, or its policy does not see what is recorded.
    """
    policy = open_policy(checkpoint, "cpu")
    need_images(policy, checkpoint)
    size, cameras = policy.config.image_size, policy.config.num_cameras
    if (size, size) != info.image_shape:
        raise UserError(f"--roll-in {checkpoint} sees images of {size} pixels: add --image-size {size}")
    if cameras != len(info.cameras):
        raise UserError(f"--roll-in {checkpoint} sees {cameras} cameras, {len(info.cameras)} are recorded")

    def decide(obs: Observation, seed: int, decision: int) -> Array:
        rng = DecisionRng(np.array([seed]), np.array([decision]))
        with torch.inference_mode():
            return action_array(policy.act(obs, rng, "sample").actions)[0]

    steps = max(1, info.max_episode_steps // 2)
    about = describe_policy(policy, checkpoint)["weights"]
    return RollIn(decide, steps), f"{about}; 1 to {steps} control steps"
