"""A CPU renderer for models of primitive geoms that needs nothing but numba: no GL library, no display, no GPU.

It draws planes, spheres, capsules, ellipsoids, cylinders and boxes with MuJoCo's materials, 2d textures, lights and
sky, straight from body poses, in three stages: `project` (set-up of each geom), `raster` (float32 visibility test over
each geom's screen rectangle) and `shade` (once a pixel). Each stage is a compiled function whose file holds all that it
calls: numba's disk cache looks at no other file, so a stage over two files could run stale code after an update.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.render.project import COEFS, MAX_PARTS, project
from embodied_rl.sim.render.raster import raster
from embodied_rl.sim.render.scene import Scene, camera_index, pack, placed_cameras
from embodied_rl.sim.render.shade import shade
from embodied_rl.types import Array


class Frame(NamedTuple):
    """What the stages hand on, for V views of G geoms and up to M = MAX_PARTS * G primitives.

    counts int32 [V]: primitives of a view. labels, shapes int32 [V, M]; rects int32 [V, M, 4]: x0, x1, y0, y1, ends
    excluded; coefs float64 [V, M, COEFS]. lenses float64 [V, 3]: tan of half the width, tan of half the height, pixel
    size at unit depth. views float64 [V, 3, 3]: camera axes in the world (columns right, up, back). rays float32
    [V, G, 4, 3] as `project._view_frame`; lights float32 [V, G, L, 6]: position and direction in the geom's frame.
    """

    counts: Array
    labels: Array
    shapes: Array
    rects: Array
    coefs: Array
    lenses: Array
    views: Array
    rays: Array
    lights: Array


class RaycastRenderer:
    """Draws scenes with the CPU ray caster; see `embodied_rl.sim.render.Renderer` for the interface.

    samples: rays a pixel along each side; 1 for observations, 2 (four rays a pixel, averaged) for pictures and videos.
    """

    name = "raycast"

    def __init__(self, samples: int = 1) -> None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        self._samples = samples
        self._scenes: dict[int, tuple[mujoco.MjModel, Scene]] = {}
        self._numbers = count()
        self._lock = threading.Lock()
        self._cameras = lru_cache(maxsize=1024)(self._camera_indices)

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        """Pack a model (poses of its bodies come with each `render`). UserError for what cannot be drawn."""
        scene = pack(visual_model)
        with self._lock:
            number = next(self._numbers)
            self._scenes[number] = visual_model, scene
            return number

    def remove_scene(self, scene: int) -> None:
        """Forget a model."""
        with self._lock:
            del self._scenes[scene]

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
        if site_groups:
            raise UserError("the ray caster draws no sites, and this scene has one to be seen; use egl or osmesa")
        model, packed = self._scenes[scene]
        check_poses(model, xpos, xmat, cameras, out)
        height, width = out.shape[1] * self._samples, out.shape[2] * self._samples
        indices = self._cameras(scene, cameras)
        packed = placed_cameras(packed, model, indices, xpos, xmat)
        frame, w, ids = _visibility(packed, xpos, xmat, indices, height, width)
        shade(packed, w, ids, frame.rays, frame.lights, frame.views, frame.lenses, self._samples, out)

    def geometry(
        self, scene: int, xpos: Array, xmat: Array, camera: str, height: int, width: int
    ) -> tuple[Array, Array]:
        """What is where: geom id int32 [H, W] (-1: nothing), depth along the camera's axis float32 [H, W] in metres."""
        model, packed = self._scenes[scene]
        indices = self._cameras(scene, (camera,))
        placed = placed_cameras(packed, model, indices, xpos, xmat)
        _, w, ids = _visibility(placed, xpos, xmat, indices, height, width)
        return np.where(ids[0] < 0, -1, packed.geom_id[ids[0]]), 1 / w[0]

    def _camera_indices(self, scene: int, cameras: tuple[str, ...]) -> Array:
        return np.array([camera_index(self._scenes[scene][0], name) for name in cameras], np.int64)


def check_poses(model: mujoco.MjModel, xpos: Array, xmat: Array, cameras: tuple[str, ...], out: Array) -> None:
    """Raise ValueError unless the arguments of `Renderer.render` have the documented shapes and types."""
    if xpos.dtype != np.float64 or xpos.shape != (model.nbody, 3):
        raise ValueError(f"xpos must be float64 [{model.nbody}, 3], got {xpos.dtype} {xpos.shape}")
    if xmat.dtype != np.float64 or xmat.shape != (model.nbody, 9):
        raise ValueError(f"xmat must be float64 [{model.nbody}, 9], got {xmat.dtype} {xmat.shape}")
    if out.dtype != np.uint8 or out.ndim != 4 or out.shape[0] != len(cameras) or out.shape[3] != 3:
        raise ValueError(f"out must be uint8 [{len(cameras)}, H, W, 3], got {out.dtype} {out.shape}")


def _visibility(
    scene: Scene, xpos: Array, xmat: Array, cameras: Array, height: int, width: int
) -> tuple[Frame, Array, Array]:
    """Run `project` and `raster`."""
    views, geoms, lights = len(cameras), len(scene.geom_kind), len(scene.light_kind)
    most = MAX_PARTS * geoms
    frame = Frame(
        counts=np.empty(views, np.int32),
        labels=np.empty((views, most), np.int32),
        shapes=np.empty((views, most), np.int32),
        rects=np.empty((views, most, 4), np.int32),
        coefs=np.empty((views, most, COEFS)),
        lenses=np.empty((views, 3)),
        views=np.empty((views, 3, 3)),
        rays=np.empty((views, geoms, 4, 3), np.float32),
        lights=np.empty((views, geoms, lights, 6), np.float32),
    )
    w, ids = np.empty((views, height, width), np.float32), np.empty((views, height, width), np.int32)
    project(scene, xpos, xmat.reshape(-1, 3, 3), cameras, height, width, *frame)
    raster(scene.clip, frame.counts, frame.labels, frame.shapes, frame.rects, frame.coefs, w, ids)
    return frame, w, ids
