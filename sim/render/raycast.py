"""A CPU renderer for models of primitive geoms that needs nothing but numba: no GL library, no display, no GPU.

It draws planes, spheres, capsules, ellipsoids, cylinders and boxes with MuJoCo's materials, 2d textures, lights and sky,
straight from body poses. Per view the cost is a set-up a geom, a float32 visibility test over each geom's screen rectangle,
and one shading a pixel; see `project.py`, `raster.py`, `shade.py`.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import mujoco
import numpy as np
from numba import njit

from embodied_rl.sim.render.project import COEFS, add_primitives, view_frame
from embodied_rl.sim.render.raster import draw_primitive
from embodied_rl.sim.render.scene import Scene, camera_index, pack
from embodied_rl.sim.render.shade import shade
from embodied_rl.types import Array

NOTHING = -1
"""Geom id of a pixel that shows the background."""
MAX_PARTS = 3


class RaycastRenderer:
    """Draws scenes with the CPU ray caster; see `embodied_rl.sim.render.Renderer` for the interface.

    samples: rays a pixel along each side; 1 for observations, 2 (four rays a pixel, averaged) for pictures and videos.
    """

    name = "raycast"

    def __init__(self, samples: int = 1) -> None:
        if samples < 1:
            raise ValueError(f"samples must be at least 1, got {samples}")
        self._samples = samples
        self._scenes: list[tuple[mujoco.MjModel, Scene]] = []
        self._lock = threading.Lock()
        self._cameras = lru_cache(maxsize=None)(self._camera_indices)

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        """Pack a model (poses of its bodies come with each `render`). UserError for what cannot be drawn."""
        scene = pack(visual_model)
        with self._lock:
            self._scenes.append((visual_model, scene))
            return len(self._scenes) - 1

    def render(self, scene: int, xpos: Array, xmat: Array, cameras: tuple[str, ...], out: Array) -> None:
        """Draw `cameras` into out, uint8 [V, H, W, 3]; xpos float64 [nbody, 3], xmat float64 [nbody, 9]."""
        model, packed = self._scenes[scene]
        check_poses(model, xpos, xmat, cameras, out)
        draw(packed, xpos, xmat.reshape(-1, 3, 3), self._cameras(scene, cameras), self._samples, out)

    def geometry(
        self, scene: int, xpos: Array, xmat: Array, camera: str, height: int, width: int
    ) -> tuple[Array, Array]:
        """What is where: geom id int32 [H, W] (-1: nothing) and depth along the camera axis float32 [H, W] in metres."""
        packed = self._scenes[scene][1]
        index = self._cameras(scene, (camera,))[0]
        ids, depth = np.empty((height, width), np.int32), np.empty((height, width), np.float32)
        find(packed, xpos, xmat.reshape(-1, 3, 3), int(index), ids, depth)
        return ids, depth

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


@njit(cache=True, nogil=True, error_model="numpy")
def _place(body: int, pos: Array, mat: Array, xpos: Array, xmat: Array, out_pos: Array, out_mat: Array) -> None:
    """World pose of a frame fixed to a body."""
    for i in range(3):
        out_pos[i] = xpos[body, i]
        for j in range(3):
            out_pos[i] += xmat[body, i, j] * pos[j]
            out_mat[i, j] = 0.0
            for k in range(3):
                out_mat[i, j] += xmat[body, i, k] * mat[k, j]


@njit(cache=True, nogil=True, error_model="numpy")
def _world_lights(scene: Scene, xpos: Array, xmat: Array, eye: Array, axes: Array) -> Array:
    """Position and direction of every light in the world, float64 [L, 6]; the headlight shines along the camera's axis."""
    out = np.empty((scene.light_kind.shape[0], 6))
    for light in range(out.shape[0]):
        body = scene.light_body[light]
        for i in range(3):
            if body < 0:
                out[light, i], out[light, 3 + i] = eye[i], -axes[i, 2]
                continue
            out[light, i], out[light, 3 + i] = xpos[body, i], 0.0
            for j in range(3):
                out[light, i] += xmat[body, i, j] * scene.light_pos[light, j]
                out[light, 3 + i] += xmat[body, i, j] * scene.light_dir[light, j]
    return out


@njit(cache=True, nogil=True, error_model="numpy")
def _localise(world: Array, pos: Array, mat: Array, out: Array) -> None:
    """Lights of `_world_lights` in a geom's frame, float32 [L, 6]."""
    for light in range(world.shape[0]):
        for i in range(3):
            place = 0.0
            direction = 0.0
            for k in range(3):
                place += mat[k, i] * (world[light, k] - pos[k])
                direction += mat[k, i] * world[light, 3 + k]
            out[light, i] = place
            out[light, 3 + i] = direction


@njit(cache=True, nogil=True, error_model="numpy")
def _trace(
    scene: Scene, xpos: Array, xmat: Array, eye: Array, axes: Array, lens: Array, w: Array, ids: Array, frames: Array, lights: Array
) -> None:
    """Visibility of one view: w, ids; and for geoms that may be seen, their ray frames and lights."""
    height, width = ids.shape
    w[:] = 1.0 / scene.clip[1]
    ids[:] = NOTHING
    world = _world_lights(scene, xpos, xmat, eye, axes)
    image = np.array((0, width, 0, height), np.int64)
    pos, mat, seen, frame = np.empty(3), np.empty((3, 3)), np.empty((3, 3)), np.empty((4, 3))
    shapes, rects, coefs = np.empty(MAX_PARTS, np.int64), np.empty((MAX_PARTS, 4), np.int64), np.empty((MAX_PARTS, COEFS))
    for geom in range(scene.geom_kind.shape[0]):
        _place(scene.geom_body[geom], scene.geom_pos[geom], scene.geom_mat[geom], xpos, xmat, pos, mat)
        view_frame(pos, mat, eye, axes, lens, frame)
        for i in range(3):
            for j in range(3):
                seen[i, j] = mat[0, i] * axes[0, j] + mat[1, i] * axes[1, j] + mat[2, i] * axes[2, j]
            seen[i, 2] = -seen[i, 2]
        count = add_primitives(
            scene.geom_kind[geom], frame, scene.geom_size[geom], seen, lens, scene.clip[0], image, shapes, rects, coefs
        )
        for part in range(count):
            draw_primitive(shapes[part], rects[part], coefs[part], 1.0 / scene.clip[0], geom, w, ids)
        if count:
            frames[geom] = frame
            _localise(world, pos, mat, lights[geom])


@njit(cache=True, nogil=True, error_model="numpy")
def _lens(tan: float, height: int, width: int) -> Array:
    return np.array((tan * width / height, tan, 2.0 * tan / height))


@njit(cache=True, nogil=True, error_model="numpy")
def find(scene: Scene, xpos: Array, xmat: Array, camera: int, ids: Array, depth: Array) -> None:
    """Geom ids and depths of one view; the kernel behind `RaycastRenderer.geometry`."""
    count = scene.geom_kind.shape[0]
    eye, axes = np.empty(3), np.empty((3, 3))
    _place(scene.camera_body[camera], scene.camera_pos[camera], scene.camera_mat[camera], xpos, xmat, eye, axes)
    frames = np.empty((count, 4, 3), np.float32)
    lights = np.empty((count, scene.light_kind.shape[0], 6), np.float32)
    _trace(scene, xpos, xmat, eye, axes, _lens(scene.camera_tan[camera], *ids.shape), depth, ids, frames, lights)
    for y in range(ids.shape[0]):
        for x in range(ids.shape[1]):
            depth[y, x] = 1.0 / depth[y, x]
            if ids[y, x] >= 0:
                ids[y, x] = scene.geom_id[ids[y, x]]


@njit(cache=True, nogil=True, error_model="numpy")
def draw(scene: Scene, xpos: Array, xmat: Array, cameras: Array, samples: int, out: Array) -> None:
    """Draw `cameras` (indices) into out, uint8 [V, H, W, 3], with samples x samples rays a pixel; releases the GIL."""
    height, width = out.shape[1] * samples, out.shape[2] * samples
    count = scene.geom_kind.shape[0]
    eye, axes = np.empty(3), np.empty((3, 3))
    w, ids, color = np.empty((height, width), np.float32), np.empty((height, width), np.int32), np.empty((height, width, 3), np.float32)
    frames = np.empty((count, 4, 3), np.float32)
    lights = np.empty((count, scene.light_kind.shape[0], 6), np.float32)
    for view in range(cameras.shape[0]):
        camera = cameras[view]
        _place(scene.camera_body[camera], scene.camera_pos[camera], scene.camera_mat[camera], xpos, xmat, eye, axes)
        lens = _lens(scene.camera_tan[camera], height, width)
        _trace(scene, xpos, xmat, eye, axes, lens, w, ids, frames, lights)
        shade(scene, w, ids, frames, lights, axes, lens, color)
        _average(color, samples, out[view])


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _average(color: Array, samples: int, out: Array) -> None:
    """Mean over samples x samples blocks, rounded to uint8."""
    share = np.float32(1.0 / (samples * samples))
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            for k in range(3):
                total = np.float32(0)
                for j in range(samples):
                    for i in range(samples):
                        total += color[y * samples + j, x * samples + i, k]
                out[y, x, k] = np.uint8(total * share + np.float32(0.5))
