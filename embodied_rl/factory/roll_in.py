"""The policy that begins the episodes of `collect --roll-in`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied_rl.data.roll_in import RollIn
from embodied_rl.errors import UserError
from embodied_rl.factory.backends import need_images
from embodied_rl.factory.envs import describe_policy, open_policy, policy_folder
from embodied_rl.policies.checkpoints.hub import source_name
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.policies.preprocessing.images import image_pipeline
from embodied_rl.policy import action_chunks
from embodied_rl.rng import DecisionRng
from embodied_rl.sim.libero.protocol import Protocol
from embodied_rl.sim.task import TaskSpec
from embodied_rl.types import Array, Observation
from embodied_rl.vec_env import EnvInfo


def fixed_checkpoint(checkpoint: str) -> str:
    """A name that means the same policy from now on: of a run's folder, the newest checkpoint that it has now."""
    return checkpoint if is_shipped(checkpoint) else source_name(policy_folder(checkpoint))


def open_roll_in(checkpoint: str, tasks: Sequence[TaskSpec], chosen: Protocol, info: EnvInfo) -> tuple[RollIn, str]:
    """The policy of a checkpoint, which samples as in training, for up to half of each task's time under `chosen`.

    It sees the first of the recorded cameras, as many as it has.

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
    if cameras > len(info.cameras):
        raise UserError(
            f"--roll-in {checkpoint} sees {cameras} cameras, and {len(info.cameras)} are recorded: "
            f"name a policy of at most {len(info.cameras)}"
        )

    if policy.center_crop is not None and image_pipeline(chosen.images).crop_area is not None:
        raise UserError(
            f"--roll-in {checkpoint} cuts out the middle of what it sees, and so does --protocol {chosen.name} before "
            "it: choose a protocol whose pictures are whole"
        )

    def decide(obs: Observation, seed: int, decision: int) -> Array:
        rng = DecisionRng(np.array([seed]), np.array([decision]))
        seen = Observation(obs.images[:, :cameras], obs.proprio, obs.instruction)
        with torch.inference_mode():
            return action_chunks(policy.act(seen, rng, "sample").actions).numpy()[0]

    steps = {task.name: max(1, chosen.horizon(task) // 2) for task in tasks}
    about = describe_policy(policy, checkpoint)["weights"]
    return RollIn(decide, steps), f"{about}; 1 control step to half of the task's"
