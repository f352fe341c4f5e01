"""A CPU renderer for models with meshes that needs nothing but numba: no GL library, no display, no GPU.

Close to MuJoCo's own frames, not equal to them: meshes are decimated as far as a pixel allows (`decimate`), textures
reduced to 512 texels a side, light is evaluated per pixel, and there are no shadows. Three compiled stages: `place`
(poses in the camera's frame), `raster` (which triangle each sample shows) and `shade` (colours). The file of each holds
all that it calls: numba's disk cache looks at no other file, so a stage over two files could run stale code.
"""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import NamedTuple

import mujoco
import numpy as np

from embodied_rl.sim.render.mesh.ladder import Ladders
from embodied_rl.sim.render.mesh.pack import OPAQUE, Packer, Scene
from embodied_rl.sim.render.mesh.place import place, reflect, seen_mirror
from embodied_rl.sim.render.mesh.raster import raster
from embodied_rl.sim.render.mesh.shade import background, shade, store
from embodied_rl.sim.render.raycast import check_poses
from embodied_rl.sim.render.scene import camera_index, placed_cameras
from embodied_rl.types import Array

SAMPLES = {1: (0.5,), 4: (0.625, 0.125, 0.875, 0.375)}
"""Where in a pixel's width the samples of its rows lie; 4: the places of OpenGL's usual multisampling."""
TOLERANCE = 0.125
"""Pixels that a decimated mesh may deviate."""
_MIRROR = 3
"""In a mirror it may deviate so much more."""


class _Drawn(NamedTuple):
    """Which parts of a scene are drawn, int32: the opaque ones, those that a mirror shows, the transparent ones."""

    opaque: Array
    mirrored: Array
    transparent: Array


class _Buffers:
    """A thread's working memory: of the raster [S H, W], of V vertices and T triangles."""

    def __init__(self) -> None:
        self.cam, self.record, self.origin = _triangle_room(0, 0)

    def fit(self, scene: Scene) -> None:
        """Make room for any rung of every part at once."""
        vertices, triangles = int(scene.lods[..., 1].max(initial=0)), int(scene.lods[:, 0, 3].sum())
        if vertices > len(self.cam) or triangles > len(self.record):
            self.cam, self.record, self.origin = _triangle_room(
                max(vertices, len(self.cam)), max(triangles, len(self.record))
            )


def _triangle_room(vertices: int, triangles: int) -> tuple[Array, Array, Array]:
    return (
        np.empty((vertices, 5), np.float32), np.empty((triangles, 8), np.float32), np.empty((triangles, 4), np.int32)
    )  # fmt: skip


class RasterRenderer:
    """Draws scenes with the CPU rasteriser; see `embodied_rl.sim.render.Renderer` for the interface.

    Args:
        samples: a pixel, 1 or 4.
        tolerance: pixels that a decimated mesh may deviate.
        ladders: folder where decimated meshes are kept, so that each is made once on a machine; None: in memory only.
    """

    name = "raster"

    def __init__(self, samples: int = 4, tolerance: float = TOLERANCE, ladders: Path | None = None) -> None:
        if samples not in SAMPLES:
            raise ValueError(f"samples must be 1 or 4, got {samples}")
        self._offsets = np.array(SAMPLES[samples], np.float32)
        self._tolerance = tolerance
        self._packer = Packer(Ladders(ladders))
        self._scenes: dict[int, tuple[mujoco.MjModel, Scene]] = {}
        self._drawn: dict[tuple[int, tuple[int, ...]], _Drawn] = {}
        self._numbers = count()
        self._lock = threading.Lock()
        self._local = threading.local()

    def add_scene(self, visual_model: mujoco.MjModel) -> int:
        """Pack a model (poses of its bodies come with each `render`). UserError for what cannot be drawn."""
        with self._lock:
            packed = self._packer.pack(visual_model)
            number = next(self._numbers)
            self._scenes[number] = visual_model, packed
            return number

    def remove_scene(self, scene: int) -> None:
        """Forget a model; meshes and textures that it may share with others stay."""
        with self._lock:
            del self._scenes[scene]
            for key in [key for key in self._drawn if key[0] == scene]:
                del self._drawn[key]

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
        model, packed = self._scenes[scene]
        check_poses(model, xpos, xmat, cameras, out)
        drawn = self._parts(scene, packed, site_groups)
        if not hasattr(self._local, "buffers"):
            self._local.buffers = _Buffers()
        self._local.buffers.fit(packed)
        indices = [camera_index(model, camera) for camera in cameras]
        placed = placed_cameras(packed, model, indices, xpos, xmat)
        for camera, image in zip(indices, out, strict=True):
            view = _View(placed, camera, image.shape, self._offsets, self._tolerance)
            view.place(xpos, xmat.reshape(-1, 3, 3))
            view.draw(drawn, self._local.buffers)
            store(view.total, image)

    def _parts(self, number: int, scene: Scene, site_groups: tuple[int, ...]) -> _Drawn:
        key = number, site_groups
        if key not in self._drawn:
            shown = np.flatnonzero(np.isin(scene.group, (-1, *site_groups)))
            solid = scene.look[shown, 6] >= OPAQUE
            opaque = shown[solid].astype(np.int32)
            self._drawn[key] = _Drawn(opaque, opaque[opaque != scene.mirror], shown[~solid].astype(np.int32))
        return self._drawn[key]


class _View:
    """One frame in the making."""

    def __init__(self, scene: Scene, camera: int, shape: tuple[int, ...], offsets: Array, tolerance: float) -> None:
        height, width = shape[:2]
        self._scene, self._camera, self._offsets = scene, camera, offsets
        self._lens = np.array([0.5 * height / scene.camera_tan[camera], 0.5 * width, 0.5 * height, tolerance])
        self._pose = np.empty((len(scene.body), 3, 4), np.float32)
        self._lights, self._axes = np.empty((len(scene.light_body), 6), np.float32), np.empty((3, 3))
        rows = height * len(offsets)
        self._w = np.full((rows, width), 1 / scene.clip[1], np.float32)
        self._cap = np.full((rows, width), 1 / scene.clip[0], np.float32)
        self._ids = np.full((rows, width), -1, np.int32)
        self.total = np.empty((height, width, 3), np.float32)
        """Colours, 0..255."""

    def place(self, xpos: Array, xmat: Array) -> None:
        """Put everything before the camera."""
        place(self._scene, xpos, xmat, self._camera, self._pose, self._lights, self._axes)

    def draw(self, drawn: _Drawn, buffers: _Buffers) -> None:
        """Opaque parts, what a mirror adds to them, then the transparent ones, in MuJoCo's order."""
        scene, lens, offsets, w, ids = self._scene, self._lens, self._offsets, self._w, self._ids
        cam, record, origin = buffers.cam, buffers.record, buffers.origin
        raster(scene, self._pose, drawn.opaque, lens, offsets, False, w, self._cap, ids, cam, record, origin, 0)
        background(scene, self._axes, lens, len(offsets), ids, self.total)
        shade(scene, self._pose, self._lights, lens, offsets, w, ids, record, origin, (0, 0), 1.0, False, self.total)
        if scene.mirror >= 0:
            self._reflect(drawn.mirrored, buffers)
        self._blend(drawn.transparent, buffers)

    def _reflect(self, parts: Array, buffers: _Buffers) -> None:
        """Add what the mirror shows where its upper side is seen."""
        scene, samples = self._scene, len(self._offsets)
        cam, record, origin = buffers.cam, buffers.record, buffers.origin
        mask = np.empty_like(self._w)
        first, last, left, right = seen_mirror(scene, self._ids, origin, self._w, mask)
        if first >= last:
            return
        pose, lights = np.empty_like(self._pose), np.empty_like(self._lights)
        if not reflect(scene, self._pose, self._lights, pose, lights):
            return
        top, bottom = first // samples, (last - 1) // samples + 1
        cap = np.ascontiguousarray(mask[top * samples : bottom * samples, left:right])
        w, ids = np.full_like(cap, 1 / scene.clip[1]), np.full(cap.shape, -1, np.int32)
        lens = self._lens - np.array([0, left, top, 0])
        lens[3] *= _MIRROR
        raster(scene, pose, parts, lens, self._offsets, True, w, cap, ids, cam, record, origin, 0)
        shade(
            scene, pose, lights, lens, self._offsets, w, ids, record, origin, (top, left),
            float(scene.reflectance), False, self.total,
        )  # fmt: skip

    def _blend(self, parts: Array, buffers: _Buffers) -> None:
        """Mix in the transparent parts: MuJoCo draws them from the nearest to the farthest, and then back again."""
        scene, cam, record, origin = self._scene, buffers.cam, buffers.record, buffers.origin
        reach = np.linalg.norm(scene.box[parts, 3:], axis=1)
        near = np.argsort(np.linalg.norm(self._pose[parts, :, 3], axis=1) - reach, kind="stable")
        for part in (*parts[near], *parts[near[::-1]]):
            w, ids = self._w.copy(), np.full_like(self._ids, -1)
            one = np.array([part], np.int32)
            if raster(scene, self._pose, one, self._lens, self._offsets, False, w, self._cap, ids, cam, record,
                      origin, 0):  # fmt: skip
                shade(scene, self._pose, self._lights, self._lens, self._offsets, w, ids, record, origin, (0, 0), 1.0,
                      True, self.total)  # fmt: skip
