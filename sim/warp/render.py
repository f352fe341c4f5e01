"""Pictures of many worlds at once, ray traced by MuJoCo Warp from the visual model; they never leave the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import torch
import warp as wp

from embodied_rl.sim.eras import CURRENT
from embodied_rl.sim.mujoco.era import mark
from embodied_rl.sim.warp import kernels  # noqa: F401 (before mujoco_warp: it keeps Warp quiet)
from embodied_rl.sim.warp.batch import Settings, capacity, field_views, put_model, wp_device
from embodied_rl.sim.warp.randomize import EnvFields, Randomization
from embodied_rl.types import Array

import mujoco_warp as mjw  # isort: skip


@dataclass(frozen=True, slots=True)
class View:
    """What is drawn of a world: `cameras` by name, H = W = `size` pixels; `exact`: with shadows and antialiasing."""

    cameras: tuple[str, ...]
    size: int
    exact: bool = False


class _Canvas:
    """Room for pictures of `worlds` worlds."""

    def __init__(self, host: mujoco.MjModel, model: mjw.Model, view: View, worlds: int, *, geometry: bool) -> None:
        self.model, self.view = model, view
        self.data = mjw.make_data(host, nworld=worlds, nconmax=1, njmax=1)  # nothing is simulated here
        self.context = mjw.create_render_context(
            host,
            worlds,
            cam_res=(view.size, view.size),
            render_rgb=True,
            render_depth=geometry,
            render_seg=geometry,
            use_shadows=view.exact,
            samples_per_pixel=2 if view.exact and not geometry else 1,
            render_skybox=True,
            cam_active=list(view.cameras),
        )
        self.qpos = wp.to_torch(self.data.qpos)

    def draw(self, qpos: torch.Tensor) -> None:
        """Draw the first worlds at these joint positions, float [N, nq]."""
        self.qpos[: len(qpos)] = qpos
        mjw.kinematics(self.model, self.data)
        mjw.camlight(self.model, self.data)
        mjw.refit_bvh(self.model, self.data, self.context)
        mjw.render(self.model, self.data, self.context)

    def shape(self, count: int) -> tuple[int, int, int, int]:
        return count, len(self.view.cameras), self.view.size, self.view.size


class SceneRenderer:
    """Draws one visual model.

    Args:
        host: the visual model, on the CPU; its mark of an era is taken off.
        num_envs: most worlds of a call.

    Example:
        >>> renderer = SceneRenderer(task.build_visual(), 1024, Settings("cuda:0", graph=False, deterministic=False))
        >>> renderer.draw(qpos, View(("agentview",), 128)).shape
        torch.Size([1024, 1, 128, 128, 3])
    """

    def __init__(self, host: mujoco.MjModel, num_envs: int, settings: Settings) -> None:
        self.host = mark(host, CURRENT)  # another era's contacts do not show
        self._num_envs, self._settings = num_envs, settings
        self._device = wp_device(settings.device)
        self._model = put_model(self.host, settings)
        self._fields: EnvFields | None = None
        self._canvases: dict[tuple[View, int, bool], _Canvas] = {}

    def randomize(self, env_ids: Sequence[int], drawn: Sequence[dict[str, Array]]) -> None:
        """Fields of the model for these envs, such as 'geom_rgba', which `draw` takes with their env ids."""
        if self._fields is None:
            self._canvases.clear()  # their models have no room for it
            self._fields = EnvFields(Randomization().looks(self.host, 0), self._num_envs, self._settings.device)
        self._fields.put(env_ids, drawn)

    def draw(self, qpos: torch.Tensor, view: View, env_ids: torch.Tensor | None = None) -> torch.Tensor:
        """uint8 [N, V, H, W, 3], RGB, row 0 at the top, of the joint positions float [N, nq] on the device.

        env_ids: int64 [N], whose looks they have; only after `randomize`. The memory is used again by the next call.
        """
        canvas = self._draw(qpos, view, geometry=False, env_ids=env_ids)
        bgra = wp.to_torch(canvas.context.rgb_data).view(torch.uint8)
        return bgra[: len(qpos)].view(*canvas.shape(len(qpos)), 4)[..., :3].flip(-1)

    def geometry(self, qpos: torch.Tensor, view: View) -> tuple[torch.Tensor, torch.Tensor]:
        """What is where, of N worlds: geom id int32 [N, V, H, W] (-1: nothing), and depth along the camera's axis,
        float32 [N, V, H, W] in metres (0: nothing)."""
        canvas = self._draw(qpos, view, geometry=True)
        shape = canvas.shape(len(qpos))
        seg = wp.to_torch(canvas.context.seg_data)[: len(qpos)].view(*shape, 2)
        depth = wp.to_torch(canvas.context.depth_data)[: len(qpos)].view(shape)
        return torch.where(seg[..., 1] == int(mujoco.mjtObj.mjOBJ_GEOM), seg[..., 0], -1), depth

    def _draw(self, qpos: torch.Tensor, view: View, *, geometry: bool, env_ids: torch.Tensor | None = None) -> _Canvas:
        worlds = capacity(len(qpos), self._num_envs)
        stream = None if self._device.is_cpu else wp.stream_from_torch(torch.cuda.current_stream(self._settings.device))
        with wp.ScopedDevice(self._device), wp.ScopedStream(stream):
            key = view, worlds, geometry
            if key not in self._canvases:
                self._canvases[key] = _Canvas(self.host, self._model_for(worlds), view, worlds, geometry=geometry)
                wp.synchronize_device(self._device)
            canvas = self._canvases[key]
            if self._fields is not None and env_ids is not None:
                self._fields.copy_to(field_views(canvas.model, self._fields.names), env_ids)
            canvas.draw(torch.nan_to_num(qpos))  # a tree of boxes must not hold NaN
        return canvas

    def _model_for(self, worlds: int) -> mjw.Model:
        if self._fields is None:
            return self._model
        return put_model(self.host, self._settings, dict.fromkeys(self._fields.names, worlds))
