"""The CPU engine's exact physics with images of all envs ray traced in one batch on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.warp import install
from embodied_rl.sim.warp.batch import Settings, wp_device
from embodied_rl.sim.warp.images import Images, Shown, group
from embodied_rl.sim.warp.randomize import Randomization, described
from embodied_rl.sim.warp.render import View
from embodied_rl.sim.warp.transfer import to_device
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation


class WarpDrawnEnv:
    """`embodied_rl.vec_env.VecEnv`: physics of a `MujocoVecEnv`, images by MuJoCo Warp on `device`.

    Joint positions go to the device, a few hundred bytes an env; images are made there and stay there. They show the
    substep that the CPU engine's frames show.

    Args:
        physics: the envs; opened with cameras=0, and closed with this env.
        cameras: how many of the robot's are drawn, from the first.
        device: 'cpu' or 'cuda'; there are observations and results.
        exact: draw shadows, and antialias.
        randomize: how the looks of episodes differ; the physics stays exact.

    Example:
        >>> env = WarpDrawnEnv(MujocoVecEnv(tasks, num_envs=256, image_size=128, cameras=0), device="cuda")
        >>> env.observe(range(256), out := env.new_observation(256))
        >>> out.images.device
        device(type='cuda', index=0)
    """

    def __init__(
        self,
        physics: MujocoVecEnv,
        *,
        cameras: int = len(PANDA.cameras),
        device: str = "cpu",
        exact: bool = False,
        randomize: Randomization | None = None,
    ) -> None:
        if randomize is not None and randomize.changes_physics:
            raise UserError("the CPU engine's friction and masses do not vary: take the simulator warp")
        if physics.info.cameras or not 1 <= cameras <= len(PANDA.cameras):
            raise UserError(f"give 1 to {len(PANDA.cameras)} cameras, and envs that were opened with cameras=0")
        place = wp_device(device)
        where = "cpu" if place.is_cpu else f"cuda:{place.ordinal}"
        name = f"mujoco-warp {install.version()} on {where}"
        info = replace(
            physics.info, renderer=name + described(randomize), device=where, cameras=PANDA.cameras[:cameras]
        )
        self.num_envs, self.info = physics.num_envs, info
        self._physics = physics
        view = View(info.cameras, info.image_shape[0], exact)
        settings = Settings(where, graph=False, deterministic=False)
        self._images = Images(physics.num_envs, view, settings, randomize)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; UserError for an unknown task or initial state."""
        self._physics.reset(env_ids, episodes)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._images.reset(env_id, self._physics.single_env(env_id)[0], spec.key_of_world)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `MujocoVecEnv.step`; results are on the device."""
        return self._physics.step(env_ids, actions).to(self.info.device)

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`; `out` may have more rows."""
        plain = self._physics.new_observation(len(env_ids))
        self._physics.observe(env_ids, plain)
        count = len(env_ids)
        out.proprio[:count], out.instruction[:count] = to_device(plain.proprio, self.info.device), plain.instruction
        if out.state is not None and plain.state is not None:
            out.state[:count] = to_device(plain.state, self.info.device)
        envs = [self._physics.single_env(env_id) for env_id in env_ids]
        for rows in group([single_env.model for _, single_env in envs]):
            qpos = np.stack([envs[row][1].seen.qpos for row in rows]).astype(np.float32)
            tasks = [envs[row][0] for row in rows]
            self._images.draw(
                tasks,
                to_device(torch.from_numpy(qpos), self.info.device),
                out.images,
                Shown([env_ids[row] for row in rows], rows),
            )

    def state(self, env_ids: Sequence[int]) -> torch.Tensor:
        """As `MujocoVecEnv.state`, on the device."""
        return self._physics.state(env_ids).to(self.info.device)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Render `camera` at `size`, also after the episode's end: uint8 [size, size, 3] in host memory."""
        if camera not in PANDA.cameras:
            raise UserError(f"unknown camera '{camera}'.{suggest(camera, PANDA.cameras)}")
        task, single_env = self._physics.single_env(env_id)
        qpos = to_device(torch.from_numpy(single_env.seen.qpos.astype(np.float32)), self.info.device)
        return self._images.frame(task, qpos, View((camera,), size, exact=True), env_id)

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows on the device."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Close the envs of the CPU engine."""
        self._physics.close()
