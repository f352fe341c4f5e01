"""Triangles of geoms: those of meshes with their corners as MuJoCo sends them to OpenGL, and those of primitives."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import mujoco
import numpy as np

from embodied_rl.types import Array

PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX, MESH = 0, 2, 3, 4, 5, 6, 7
"""mjtGeom values that can be drawn."""
_SLICES, _STACKS = 28, 16
"""As MuJoCo's own tessellation of round primitives (mjVisual.quality: numslices, numstacks)."""
_FLAT_NORMAL = 0.8


class Triangles(NamedTuple):
    """vert float32 [V, 3], metres; tri int32 [T, 3]; corner float32 [T, 3, 5]: normal and texture coordinates."""

    vert: Array
    tri: Array
    corner: Array


def unit(vectors: Array) -> Array:
    """Vectors [..., 3] of length 1; zero ones stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-20)


def mesh_corners(model: mujoco.MjModel, mesh: int) -> tuple[Array, Array, Array | None]:
    """Points, normals [F, 3, 3] and texture coordinates [F, 3, 2] of a mesh's corners, as mjr_uploadMesh sends them.

    Without coordinates (None) a normal that is far from its triangle's is replaced by that.
    """
    faces = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    points = model.mesh_vert[model.mesh_face[faces] + model.mesh_vertadr[mesh]]
    normals = model.mesh_normal[model.mesh_facenormal[faces] + model.mesh_normaladr[mesh]]
    start = model.mesh_texcoordadr[mesh]
    if start >= 0:
        return points, normals, model.mesh_texcoord[model.mesh_facetexcoord[faces] + start]
    flat = unit(np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0]))[:, None]
    agree = (normals * flat).sum(-1, keepdims=True) >= _FLAT_NORMAL
    return points, np.where(agree, normals, flat).astype(np.float32), None


def rung_triangles(points: Array, normals: Array, coords: Array | None, corners: Array) -> Triangles:
    """One rung of a mesh's ladder: `corners` int32 [T, 3] number the mesh's corners (see `decimate`)."""
    at = points.reshape(-1, 3)[corners]
    vert, tri = np.unique(np.ascontiguousarray(at.reshape(-1, 3)), axis=0, return_inverse=True)
    corner = np.zeros((*corners.shape, 5), np.float32)
    corner[..., :3] = normals.reshape(-1, 3)[corners]
    if coords is not None:
        corner[..., 3:] = coords.reshape(-1, 2)[corners]
    return Triangles(vert.astype(np.float32), tri.reshape(-1, 3).astype(np.int32), corner)


def primitive(kind: int, size: Array, far: float) -> Triangles:
    """Triangles of a primitive; texture coordinates are zero. far: half the side of an infinite plane, metres."""
    if kind == PLANE:
        x, y = (s if s > 0 else far for s in size[:2])
        quads = [(np.array([(-x, -y, 0), (x, -y, 0), (x, y, 0), (-x, y, 0)]), np.tile((0, 0, 1.0), (4, 1)))]
    elif kind == BOX:
        quads = _box(size)
    else:
        quads = _round(kind, size)
    points = np.array([q[list(c)] for q, _ in quads for c in ((0, 1, 2), (0, 2, 3))])
    normals = np.array([n[list(c)] for _, n in quads for c in ((0, 1, 2), (0, 2, 3))])
    area = np.linalg.norm(np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0]), axis=-1)
    points, normals = points[area > 1e-14], normals[area > 1e-14]
    vert, tri = np.unique(np.round(points.reshape(-1, 3), 7), axis=0, return_inverse=True)
    corner = np.zeros((len(points), 3, 5), np.float32)
    corner[..., :3] = normals
    return Triangles(vert.astype(np.float32), tri.reshape(-1, 3).astype(np.int32), corner)


def _box(size: Array) -> list[tuple[Array, Array]]:
    quads = []
    for axis in range(3):
        for sign in (-1, 1):
            u, v, n = np.eye(3)[(axis + 1) % 3], np.eye(3)[(axis + 2) % 3] * sign, np.eye(3)[axis] * sign
            quads.append((np.array([n - u - v, n + u - v, n + u + v, n - u + v]) * size, np.tile(n, (4, 1))))
    return quads


def _round(kind: int, size: Array) -> list[tuple[Array, Array]]:
    turn = 2 * np.pi * np.arange(_SLICES + 1) / _SLICES
    ring = np.stack([np.cos(turn), np.sin(turn)], -1)
    radii = np.array([size[0], size[1] if kind == ELLIPSOID else size[0]])
    quads = []
    for (r0, z0, nr0, nz0), (r1, z1, nr1, nz1) in _strips(kind, size):
        for a, b in pairwise(ring):
            points = [(*(r * radii * p), z) for r, z, p in ((r0, z0, a), (r0, z0, b), (r1, z1, b), (r1, z1, a))]
            around = ((nr0, nz0, a), (nr0, nz0, b), (nr1, nz1, b), (nr1, nz1, a))
            normals = [(*(nr / radii * size[0] * p), nz) for nr, nz, p in around]
            quads.append((np.array(points), unit(np.array(normals))))
    return quads


Edge = tuple[float, float, float, float]


def _strips(kind: int, size: Array) -> list[tuple[Edge, Edge]]:
    """Strips of a round body from below: (radius / size[0], z, normal's radius, normal's z) at both edges."""
    if kind == CYLINDER:
        h = float(size[1])
        return [((0, -h, 0, -1), (1, -h, 0, -1)), ((1, -h, 1, 0), (1, h, 1, 0)), ((1, h, 0, 1), (0, h, 0, 1))]
    half, high = (size[1], size[0]) if kind == CAPSULE else (0.0, size[2] if kind == ELLIPSOID else size[0])
    rows: list[Edge] = []
    for a in np.linspace(-np.pi / 2, np.pi / 2, _STACKS + 1):
        rows.append(
            (math.cos(a), high * math.sin(a) + math.copysign(half, a), math.cos(a), math.sin(a) * size[0] / high)
        )
    return list(pairwise(rows))
