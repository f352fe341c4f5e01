"""Images of an env brought to the size that a policy looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import Array, Observation
from embodied_rl.vec_env import VecEnv


class FittedImages(VecEnvWrapper):
    """`embodied_rl.vec_env.VecEnv` that runs another one, whose images it resizes.

    Args:
        env: the one that runs; it shows images.
        image_size: H = W in pixels of what is shown.
        cameras: how many of the env's, from the first.
        resize: makes uint8 [S, S, 3] of uint8 [H, W, 3] and S, such as `bilinear_pillow_padded`.

    Raises:
        UserError: The env has fewer cameras.

    Example:
        >>> env = FittedImages(GymnasiumVecEnv(["Mine-v0"], 8), image_size=64, cameras=1, resize=bilinear_pillow)
    """

    def __init__(self, env: VecEnv, *, image_size: int, cameras: int, resize: Callable[[Array, int], Array]) -> None:
        super().__init__(env)
        if cameras > len(env.info.cameras):
            has = ", ".join(env.info.cameras) or "none"
            raise UserError(f"suite '{env.info.suite}': the policy looks at {cameras} cameras, and it has {has}.")
        self._resize = resize
        self.info = replace(env.info, cameras=env.info.cameras[:cameras], image_shape=(image_size, image_size))

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`."""
        rows, size = len(env_ids), self.info.image_shape[0]
        shown = self._env.new_observation(rows)
        lost = self._env.observe(env_ids, shown)
        out.proprio[:rows], out.instruction[:rows] = shown.proprio, shown.instruction
        if out.state is not None and shown.state is not None:
            out.state[:rows] = shown.state
        for row, cameras in enumerate(shown.images.cpu().numpy()):
            for camera in range(len(self.info.cameras)):
                out.images[row, camera] = torch.from_numpy(self._resize(cameras[camera], size))
        return lost

    def new_observation(self, rows: int) -> Observation:
        """As `VecEnv.new_observation`."""
        return self.info.new_observation(rows)
