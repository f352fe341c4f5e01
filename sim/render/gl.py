"""The Renderer interface over MuJoCo's own OpenGL renderer, with EGL or OSMesa: any model, on a GPU or in software.

For observations shadows, multisampling, reflections and haze are off: on a software driver they cost up to 40 times the
frame (141 against 3.7 ms at 128 x 128).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.render.cull import Culler
from embodied_rl.sim.render.raycast import check_poses
from embodied_rl.sim.render.scene import camera_index, camera_pose
from embodied_rl.types import Array

_RENDER, _VISUAL = mujoco.mjtRndFlag, mujoco.mjtVisFlag
_IMAGE_FLAGS = [int(flag) for flag in (_RENDER.mjRND_SHADOW, _RENDER.mjRND_REFLECTION, _RENDER.mjRND_HAZE)]
_DRAWN = [int(flag) for flag in (_VISUAL.mjVIS_TEXTURE, _VISUAL.mjVIS_STATIC)]
# One GL context at a time is made or freed in a process, and a model's quality settings are changed only meanwhile.
MAKING = threading.Lock()


class GlRenderer:
    """Draws scenes with OpenGL; see `embodied_rl.sim.render.Renderer` for the interface.

    A GL context belongs to a thread, so each thread that renders makes its own, with a copy of every scene it draws.
    One process uses one backend; asking for the other one later is a UserError.
    """

    def __init__(self, backend: Literal["egl", "osmesa"], *, images: bool = False) -> None:
        self.name = backend
        self._context_class = _context_class(backend)
        self._images = images
        self._models: dict[int, mujoco.MjModel] = {}
        self._numbers = count()
        self._lock = threading.Lock()
        self._local = threading.local()

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        """Register a model. UserError for a tracking light, a skin or a flex, which body poses do not give."""
        tracking = (visual_model.light_mode != mujoco.mjtCamLight.mjCAMLIGHT_FIXED) & (visual_model.light_active != 0)
        if tracking.any():
            name = visual_model.light(int(np.flatnonzero(tracking)[0])).name
            raise UserError(f"light '{name}' tracks a body; only lights with mode='fixed' can be drawn from body poses")
        if visual_model.nskin or visual_model.nflex:
            raise UserError("the scene has a skin or a flex, whose vertices cannot be drawn from body poses; remove it")
        with self._lock:
            number = next(self._numbers)
            self._models[number] = visual_model
            return number

    def remove_scene(self, scene: int) -> None:
        """Forget a model; each thread frees its copy when it draws the next time."""
        with self._lock:
            del self._models[scene]

    def render(
        self,
        scene: int,
        xpos: Array,
        xmat: Array,
        cameras: tuple[str, ...],
        out: Array,
        site_groups: tuple[int, ...] = (),
    ) -> None:
        """Draw `cameras` into out, uint8 [V, H, W, 3]; xpos float64 [nbody, 3], xmat float64 [nbody, 9]."""
        model = self._models[scene]
        check_poses(model, xpos, xmat, cameras, out)
        view = self._view(scene)
        view.stage.place(xpos, xmat)
        for camera, image in zip(cameras, out, strict=True):
            view.draw(camera_index(model, camera), image, site_groups)

    def _view(self, scene: int) -> _View:
        local = self._local
        if not hasattr(local, "views"):
            local.views = {}
            with MAKING:
                local.context = self._context_class(64, 64)
        if _current.__dict__.get("context") is not local.context:
            local.context.make_current()
            _current.context = local.context
        for gone in [number for number in local.views if number not in self._models]:
            del local.views[gone]
        if scene not in local.views:
            local.views[scene] = _View(self._models[scene], self._images)
        return local.views[scene]


_current = threading.local()  # which context this thread made current last; renderers share threads


class Stage:
    """One thread's copy of a scene, up to what MuJoCo sends to OpenGL."""

    def __init__(self, model: mujoco.MjModel, images: bool) -> None:
        self._model = model
        self._images = images
        self.data = mujoco.MjData(model)
        self.place = Placer(model, self.data).place
        self._scenes: list[mujoco.MjvScene] = []
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        self._option.flags[:] = 0
        self._option.flags[_DRAWN] = 1
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def scene(self, number: int = 0) -> mujoco.MjvScene:
        """One of as many as are wanted at the same time."""
        while len(self._scenes) <= number:
            made = mujoco.MjvScene(self._model, maxgeom=self._model.ngeom + 100)
            made.flags[_IMAGE_FLAGS] = self._images
            self._scenes.append(made)
        return self._scenes[number]

    def show(self, scene: mujoco.MjvScene, camera: int, site_groups: tuple[int, ...]) -> None:
        """Fill `scene` with what `camera` is to draw of `data`; of the sites, those of `site_groups`."""
        self._option.sitegroup[:] = [group in site_groups for group in range(mujoco.mjNGROUP)]
        self._camera.fixedcamid = camera
        category = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, self.data, self._option, None, self._camera, category, scene)


class _View:
    """One thread's copy of a scene on the GL side."""

    def __init__(self, model: mujoco.MjModel, images: bool) -> None:
        self.stage = Stage(model, images)
        self._scene = self.stage.scene()
        self._culler = Culler(model, self._scene)
        self._gl = gl_context(model, images)
        self._pixels = np.empty((0, 0, 3), np.uint8)

    def draw(self, camera: int, out: Array, site_groups: tuple[int, ...]) -> None:
        """Draw one camera from `stage.data` into out, uint8 [H, W, 3]; of the sites, those of `site_groups`."""
        height, width = out.shape[:2]
        if self._pixels.shape != out.shape:
            self._pixels = np.empty((height, width, 3), np.uint8)
            mujoco.mjr_resizeOffscreen(width, height, self._gl)
        self.stage.show(self._scene, camera, site_groups)
        self._culler.cull(width / height)
        rect = mujoco.MjrRect(0, 0, width, height)
        bind(self._gl)
        mujoco.mjr_render(rect, self._scene, self._gl)
        mujoco.mjr_readPixels(self._pixels, None, rect, self._gl)
        out[:] = self._pixels[::-1]  # GL's first row is the lowest


class Placer:
    """Writes the world poses of all that is drawn into `data`, from the bodies'."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._model, self._data = model, data
        self._moving = np.flatnonzero(model.cam_mode != mujoco.mjtCamLight.mjCAMLIGHT_FIXED).tolist()
        self._lights = model.light_bodyid, model.light_pos, model.light_dir
        self._parts = [
            (
                getattr(data, f"{prefix}_xpos"),
                getattr(data, f"{prefix}_xmat"),
                getattr(model, f"{prefix}_bodyid"),
                getattr(model, f"{prefix}_pos"),
                _matrices(getattr(model, f"{prefix}_quat")),
            )
            for prefix in ("geom", "site", "cam")
        ]

    def place(self, xpos: Array, xmat: Array) -> None:
        """Body, geom, site, camera and light poses then equal those after mj_kinematics and mj_camlight.

        xpos, xmat: as in `Renderer.render`.
        """
        data, rotation = self._data, xmat.reshape(-1, 3, 3)
        data.xpos[:], data.xmat[:] = xpos, xmat
        for to_xpos, to_xmat, body, offset, turn in self._parts:
            turned = rotation[body]
            to_xpos[:] = xpos[body] + np.einsum("nij,nj->ni", turned, offset)
            to_xmat[:] = (turned @ turn).reshape(-1, 9)
        for camera in self._moving:
            pos, axes = camera_pose(self._model, camera, xpos, xmat)
            data.cam_xpos[camera], data.cam_xmat[camera] = pos, axes.ravel()
        body, offset, direction = self._lights
        data.light_xpos[:] = xpos[body] + np.einsum("nij,nj->ni", rotation[body], offset)
        data.light_xdir[:] = np.einsum("nij,nj->ni", rotation[body], direction)


def _matrices(quats: Array) -> Array:
    """Rotation matrices [n, 3, 3] of unit quaternions [n, 4] (w, x, y, z)."""
    w, x, y, z = quats.T
    rows = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return np.moveaxis(np.array(rows), 2, 0)


def gl_context(model: mujoco.MjModel, images: bool) -> mujoco.MjrContext:
    """A model's textures, meshes and offscreen buffer in the GL context that is current."""
    with MAKING, _quality(model, images):
        made = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
    return made


def bind(context: mujoco.MjrContext) -> None:
    """Let mjr_render draw into this model's buffer: it takes the one that was bound last, be it another model's."""
    mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)


@contextmanager
def _quality(model: mujoco.MjModel, images: bool) -> Iterator[None]:
    """MuJoCo reads shadow and multisampling sizes from the model when a context is made; change them meanwhile."""
    quality = model.vis.quality
    before = quality.offsamples, quality.shadowsize
    if not images:
        quality.offsamples, quality.shadowsize = 0, 0
    try:
        yield
    finally:
        quality.offsamples, quality.shadowsize = before


def _context_class(backend: str) -> Any:
    """MuJoCo's context class; mujoco.Renderer would take the one that MUJOCO_GL named when mujoco was imported."""
    if os.environ.setdefault("PYOPENGL_PLATFORM", backend) != backend:
        raise UserError(
            f"renderer '{backend}' was asked for, but PyOpenGL is set to '{os.environ['PYOPENGL_PLATFORM']}' in this "
            f"process (PYOPENGL_PLATFORM); unset the variable, or use one GL renderer a process"
        )
    if backend == "egl":
        from mujoco.egl import GLContext
    else:
        from mujoco.osmesa import GLContext
        from OpenGL.arrays.arraydatatype import ArrayDatatype

        # Freeing a context passes None; PyOpenGL would load its handler then, too late when the interpreter is closing.
        ArrayDatatype.getHandler(None)
    return GLContext
