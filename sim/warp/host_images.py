"""Pictures of worlds on a device by a renderer of the CPU, one by one: for comparisons, not for speed."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import torch

from embodied_rl.sim.mujoco.indicators import Switch, compile_switches, lit_groups
from embodied_rl.sim.mujoco.pool import FrameRenderer
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.warp.images import Shown
from embodied_rl.sim.warp.render import View
from embodied_rl.sim.warp.transfer import to_device
from embodied_rl.types import Array


class HostImages:
    """`pictures.Pictures` by a renderer of `embodied_rl.sim.render`.

    Args:
        renderer: draws from body poses.
        view: what `draw` shows; its quality is the renderer's.
    """

    def __init__(self, renderer: FrameRenderer, view: View) -> None:
        self._renderer, self._view = renderer, view
        self._scenes: dict[str, tuple[mujoco.MjModel, mujoco.MjData, int, tuple[Switch, ...]]] = {}

    def draw(self, tasks: Sequence[MujocoTask], qpos: torch.Tensor, out: torch.Tensor, shown: Shown) -> None:
        """Fill rows of out, uint8 [.., V, H, W, 3]: out[shown.rows[i]] shows tasks[i] at qpos[i], float [N, nq]."""
        image = np.empty(out.shape[1:], np.uint8)
        for task, at, row in zip(tasks, qpos.double().cpu().numpy(), shown.rows, strict=True):
            self._draw(task, at, self._view.cameras, image)
            out[row] = to_device(torch.from_numpy(image), out.device)

    def reset(self, env_id: int, task: MujocoTask, seed: int) -> None:
        """Nothing is drawn by the episode's seed."""

    def frame(self, task: MujocoTask, qpos: torch.Tensor, view: View, env_id: int) -> Array:
        """One picture: uint8 [size, size, 3]; qpos float [nq]."""
        out = np.empty((1, view.size, view.size, 3), np.uint8)
        self._draw(task, qpos.double().cpu().numpy(), view.cameras, out)
        return out[0]

    def _draw(self, task: MujocoTask, qpos: Array, cameras: tuple[str, ...], out: Array) -> None:
        if task.name not in self._scenes:
            model = task.build_visual()
            number, switches = self._renderer.add_scene(model), compile_switches(task.indicators, model)
            self._scenes[task.name] = model, mujoco.MjData(model), number, switches
        model, data, scene, switches = self._scenes[task.name]
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        self._renderer.render(scene, data.xpos, data.xmat, cameras, out, lit_groups(switches, qpos))
