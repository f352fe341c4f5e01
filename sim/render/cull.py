"""Geoms that a camera cannot see, taken out of a scene before it is drawn: the same pixels for less work.

MuJoCo sends every geom through OpenGL for every camera; on a software driver most of a frame's time goes to triangles
that nobody sees. A geom is left out when its bounding box lies outside the camera's frustum, and, where MuJoCo draws a
mirror, when the box's mirror image lies outside what the camera sees of that mirror. Shadows fall into a view from
anywhere: a scene with a light that casts them is left alone.

mjvScene's array of geoms has no writable view in the Python bindings, so its memory is addressed through the fields
that have one; where a field lies in the struct is found out by writing to it (`_layout`), not taken from a header.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import mujoco
import numpy as np

from embodied_rl.types import Array

_PLANE, _BOX = int(mujoco.mjtGeom.mjGEOM_PLANE), int(mujoco.mjtGeom.mjGEOM_BOX)
_SHADOW, _REFLECTION = int(mujoco.mjtRndFlag.mjRND_SHADOW), int(mujoco.mjtRndFlag.mjRND_REFLECTION)
_GEOM = int(mujoco.mjtObj.mjOBJ_GEOM)
# Boxes are rounded to float32 on their way to OpenGL: room for that, relative and in metres, far above it.
_ROOM, _LEAST_ROOM = 1.01, 1e-3
_OPAQUE = 0.995  # MuJoCo draws what is less opaque as transparent
_WORDS = {"type": np.int32, "objtype": np.int32, "objid": np.int32, "reflectance": np.float32}
_ARRAYS = {"pos": 3, "size": 3, "mat": 9, "rgba": 4}
_PROBES = {"type": (2, 5), "objtype": (71, 73), "objid": (79, 83), "reflectance": (0.25, 0.75)}


class Culler:
    """Takes invisible geoms out of one scene of `model`; to be called after every mjv_updateScene."""

    def __init__(self, model: mujoco.MjModel, scene: mujoco.MjvScene) -> None:
        self._scene = scene
        self._geoms, self._bytes = _views(scene)
        self._bounded = model.geom_rbound > 0  # planes are not
        self._centre, half = model.geom_aabb[:, :3], model.geom_aabb[:, 3:]
        self._half = half * _ROOM + _LEAST_ROOM

    def cull(self, aspect: float) -> None:
        """Keep what `scene.camera` sees in a picture whose width is `aspect` times its height."""
        scene = self._scene
        if scene.flags[_SHADOW] and any(light.castshadow for light in scene.lights[: scene.nlight]):
            return
        geoms = self._geoms[: scene.ngeom]
        boxes = _Boxes(geoms, self._bounded, self._centre, self._half)
        normals, offsets = _frustum(scene, aspect)
        seen = boxes.reach(normals, offsets)
        mirrors = (geoms["type"] == _PLANE) | (geoms["type"] == _BOX)
        mirrors &= (geoms["reflectance"] > 0) & (geoms["rgba"][:, 3] >= _OPAQUE)
        if mirrors.any():
            first = int(np.argmax(mirrors))
            if geoms["type"][first] == _PLANE:  # a mirror or not, depending on which side of it the camera is
                return
            # MuJoCo lets the first mirror reflect and makes the others dull; without the first, the next would be it
            geoms["reflectance"][first + 1 :] = 0.0
            if scene.flags[_REFLECTION] and seen[first]:
                seen |= self._mirrored(boxes, geoms[first], normals, offsets)
        kept = np.flatnonzero(seen)
        self._bytes[: len(kept)] = self._bytes[kept]
        scene.ngeom = len(kept)

    def _mirrored(self, boxes: _Boxes, mirror: Any, normals: Array, offsets: Array) -> Array:
        """bool [n]: which boxes the camera may see in the upper side of the box `mirror`."""
        corners, centre, normal = _upper_side(mirror)
        eye = (np.asarray(self._scene.camera[0].pos, np.float64) + self._scene.camera[1].pos) / 2
        if (eye - centre) @ normal < -_LEAST_ROOM:  # MuJoCo draws no mirror from behind
            return np.zeros(len(boxes.centre), bool)
        normals, offsets = _narrowed(corners, eye, normals, offsets)
        # that an image is in the frustum is as much as that the box is in the frustum's image
        along = normals @ normal
        normals, offsets = normals - 2 * along[:, None] * normal, offsets - 2 * along * (centre @ normal)
        # what lies below the mirror is clipped from its picture
        return boxes.reach(np.vstack([normals, normal]), np.append(offsets, centre @ normal))


class _Boxes:
    """Bounding boxes of n geoms in the world; what is not `bounded` reaches everywhere."""

    def __init__(self, geoms: Array, bounded: Array, centre: Array, half: Array) -> None:
        number = np.where(geoms["objtype"] == _GEOM, geoms["objid"], 0)
        self._bounded = bounded[number] & (geoms["objtype"] == _GEOM)
        self._axes = geoms["mat"].reshape(-1, 3, 3)
        self._half = half[number]
        self.centre = geoms["pos"] + np.einsum("nij,nj->ni", self._axes, centre[number])

    def reach(self, normals: Array, offsets: Array) -> Array:
        """bool [n]: whether each box reaches into all half-spaces normals [p, 3] @ x >= offsets [p]."""
        extent = np.einsum("npk,nk->np", np.abs(normals @ self._axes), self._half)
        inside = (self.centre @ normals.T + extent >= offsets).all(axis=1)
        return inside | ~self._bounded


def _narrowed(corners: Array, eye: Array, normals: Array, offsets: Array) -> tuple[Array, Array]:
    """The frustum, with a plane more for each of its four sides: through the eye, and touching the mirror's corners.

    A mirror image is drawn only where the mirror is. Each side's plane turns about the eye until it meets a corner.
    """
    forward = normals[0]
    ahead = (corners - eye) @ forward
    if ahead.min() <= _LEAST_ROOM:  # a corner beside or behind the eye bounds nothing
        return normals, offsets
    sides = normals[2:]
    least = ((corners - eye) @ sides.T / ahead[:, None]).min(axis=0)
    turned = sides - np.maximum(least, 0.0)[:, None] * forward
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    return np.concatenate([normals, turned]), np.concatenate([offsets, turned @ eye - _LEAST_ROOM])


def _upper_side(geom: Any) -> tuple[Array, Array, Array]:
    """A box's upper side: its corners [4, 3], its centre and its normal."""
    axes = geom["mat"].reshape(3, 3).astype(np.float64).T
    x, y, z = axes * geom["size"][:, None]
    centre = geom["pos"] + z
    return np.array([centre + i * x + j * y for i in (-1, 1) for j in (-1, 1)]), centre, axes[2]


def _frustum(scene: mujoco.MjvScene, aspect: float) -> tuple[Array, Array]:
    """Inward normals [6, 3] and offsets [6] of what a scene's camera sees, as mjr_render sets its projection."""
    left, right = scene.camera[0], scene.camera[1]  # MuJoCo draws from the middle between the eyes
    if left.orthographic:
        return np.zeros((1, 3)), np.zeros(1)  # all is seen
    position = (np.asarray(left.pos, np.float64) + right.pos) / 2
    forward, up = np.asarray(left.forward, np.float64), np.asarray(left.up, np.float64)
    side = np.cross(forward, up)
    near, far, low, high = left.frustum_near, left.frustum_far, left.frustum_bottom, left.frustum_top
    half = left.frustum_width or aspect * (high - low) / 2
    middle = (left.frustum_center + right.frustum_center) / 2
    normals = np.array(
        [
            forward,
            -forward,
            near * side - (middle - half) * forward,
            (middle + half) * forward - near * side,
            near * up - low * forward,
            high * forward - near * up,
        ]
    )
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    offsets = normals @ position
    offsets[0] += near
    offsets[1] -= far
    return normals, offsets


def _views(scene: mujoco.MjvScene) -> tuple[Array, Array]:
    """The scene's geoms over MuJoCo's own memory: the fields used here, and whole structs as bytes."""
    offsets, stride = _layout()
    fields = _WORDS | {name: (np.float32, size) for name, size in _ARRAYS.items()}
    kind = np.dtype(
        {
            "names": list(fields),
            "formats": list(fields.values()),
            "offsets": [offsets[name] for name in fields],
            "itemsize": stride,
        }
    )
    start = scene.geoms[0].pos.ctypes.data - offsets["pos"]
    memory = (ctypes.c_char * (stride * scene.maxgeom)).from_address(start)
    return np.frombuffer(memory, kind), np.frombuffer(memory, np.dtype((np.void, stride)))


@cache
def _layout() -> tuple[dict[str, int], int]:
    """Offsets of the fields of mjvGeom that are used here, and its size in bytes.

    RuntimeError if this MuJoCo does not lay them out as four-byte words that begin with `type`.
    """
    scene = mujoco.MjvScene(mujoco.MjModel.from_xml_string("<mujoco/>"), maxgeom=3)
    before, geom, after = (scene.geoms[i].pos.ctypes.data for i in range(3))
    stride = after - geom
    # from the geom before to the geom after, both of which are in the array
    words = np.frombuffer((ctypes.c_char * (2 * stride)).from_address(before), np.int32)
    offsets: dict[str, int] = {}
    for name, values in _PROBES.items():
        found = np.ones(len(words), bool)
        for value in values:
            setattr(scene.geoms[1], name, value)
            found &= words == np.array(value, _WORDS[name]).view(np.int32)
        if found.sum() != 1:
            raise RuntimeError(f"cannot find mjvGeom.{name} in memory with mujoco {mujoco.__version__}")
        offsets[name] = before + 4 * int(np.argmax(found))
    offsets |= {name: getattr(scene.geoms[1], name).ctypes.data for name in _ARRAYS}
    offsets = {name: place - offsets["type"] for name, place in offsets.items()}
    if min(offsets.values()) < 0 or max(offsets.values()) >= stride:
        raise RuntimeError(f"mjvGeom of mujoco {mujoco.__version__} does not begin with its type")
    return offsets, stride
