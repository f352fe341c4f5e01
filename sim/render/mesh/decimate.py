"""Meshes with fewer triangles: half-edge collapse under a quadric error (Garland and Heckbert 1997).

A ladder has a rung for each of `ERRORS`. A collapse moves a vertex onto a neighbour, so the triangles that are left
have corners of the original mesh, with their normals and texture coordinates as they were: a rung is no more than
numbers of corners. Vertices are welded by place; those that texture coordinates tell apart at one place are its
wedges. A vertex on a seam of the texture moves along the seam only, one on a border along the border only.
"""

from __future__ import annotations

import numpy as np

from embodied_rl.sim.render.mesh.collapse import (
    add_borders,
    add_faces,
    best_corners,
    candidates,
    collapse,
    without_crumbs,
)
from embodied_rl.types import Array

ERRORS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)
"""Metres that a rung may deviate, root of the mean square over the surface around a vertex."""
VERSION = 2
"""Of the result: ladders that an older one made are not used."""
_TEXTURE_WEIGHT = 1.0
"""A shift of the texture by a metre along the surface counts as much as this many metres of the surface."""
_SHARE = 3
"""A pass makes the cheapest third of its collapses, then costs are worked out again."""
_MAX_PASSES = 100


def decimate(points: Array, normals: Array, coords: Array | None) -> list[Array]:
    """The ladder of a mesh: for each of ERRORS int32 [T, 3], corners of a triangle as numbers 3 * face + corner.

    points, normals: float [F, 3, 3], metres; coords: float [F, 3, 2], texture coordinates, or None when the mesh shows
    no texture.
    """
    place_of, place = _weld(points.reshape(-1, 3), 1e-6)
    flat = np.zeros((len(place_of), 2)) if coords is None else coords.reshape(-1, 2).astype(np.float64)
    wedge_of, wedge = _weld(np.concatenate([place_of[:, None], flat], 1), 1e-5)
    triangles = wedge_of.reshape(-1, 3)
    where, slide = wedge[:, 0].astype(np.int64), np.ascontiguousarray(wedge[:, 1:])
    corners = where[triangles]
    triangles = triangles[(corners != np.roll(corners, 1, axis=1)).all(axis=1)]
    scale = _TEXTURE_WEIGHT / max(_repeats(place[where[triangles]], slide[triangles]), 1e-3)
    mesh = _Mesh(place, where, slide * scale, triangles)
    order = np.argsort(wedge_of, kind="stable")
    start = np.searchsorted(wedge_of[order], np.arange(len(wedge) + 1))
    ladder = []
    for error in ERRORS:
        mesh.simplify(error)
        left = without_crumbs(mesh.triangles, where, place, error)
        at = place[where[left]]
        faces = np.cross(at[:, 1] - at[:, 0], at[:, 2] - at[:, 0])
        ladder.append(best_corners(left, faces, start, order, normals.reshape(-1, 3)))
    return ladder


class _Mesh:
    """What is left of a mesh, and the error so far at each place."""

    def __init__(self, place: Array, where: Array, slide: Array, triangles: Array) -> None:
        self.triangles = triangles
        self._place, self._where, self._slide = place, where, slide
        self._slid = np.zeros(len(place))
        self._quadrics = np.zeros((len(place), 11))
        edges, border, _ = self._edges()
        add_faces(self._quadrics, where[triangles], place)
        single = np.isin(_key(_sides(where[triangles])), _key(edges[border]))
        add_borders(self._quadrics, where[triangles], single.reshape(3, -1).T.copy(), place)

    def _edges(self) -> tuple[Array, Array, Array]:
        """Edges int64 [E, 2] of places, whether each is on a border, and each place's kind.

        A border edge has an odd number of triangles (a sheet with two faces has none). Kind 0: free; 1: with two border
        edges, along which it may move; 2: not to be moved.
        """
        keys, uses = np.unique(_key(_sides(self._where[self.triangles])), return_counts=True)
        edges, border = np.stack([keys >> 32, keys & 0xFFFFFFFF], 1), uses % 2 == 1
        borders = np.bincount(edges[border].ravel(), minlength=len(self._place))
        return edges, border, np.where(borders == 0, 0, np.where(borders == 2, 1, 2)).astype(np.int64)

    def simplify(self, error: float) -> None:
        """Collapse edges until each that is left would cost more than `error` metres."""
        limit = error * error
        for _ in range(_MAX_PASSES):
            if not len(self.triangles):
                return
            edges, border, kind = self._edges()
            corners = self._where[self.triangles]
            order = np.argsort(corners.ravel(), kind="stable")
            start = np.searchsorted(corners.ravel()[order], np.arange(len(self._place) + 1))
            around = (order // 3).astype(np.int64)
            moves, costs = candidates(
                edges, border, kind, self._quadrics, self._place, self._slid, self.triangles, self._where,
                self._slide, around, start, limit,
            )  # fmt: skip
            if not len(costs):
                return
            rank = np.argsort(costs, kind="stable")
            enough = rank[: max(len(rank) // _SHARE, 64)]
            moved = collapse(
                moves[enough], self._quadrics, self._place, self._slid, self.triangles, self._where,
                self._slide, around, start,
            )  # fmt: skip
            corners = self._where[self.triangles]
            self.triangles = self.triangles[(corners != np.roll(corners, 1, axis=1)).all(axis=1)]
            if not moved:
                return


def _weld(rows: Array, step: float) -> tuple[Array, Array]:
    """Number of each row's class int64 [N], rows equal to within `step` being one; and the first row of each."""
    whole = np.ascontiguousarray(np.round(rows / step).astype(np.int64))
    _, first, inverse = np.unique(whole, axis=0, return_index=True, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64), np.ascontiguousarray(rows[first], np.float64)


def _repeats(at: Array, slide: Array) -> float:
    """Median over the triangles of how much of the texture a metre of the surface shows."""
    area = np.linalg.norm(np.cross(at[:, 1] - at[:, 0], at[:, 2] - at[:, 0]), axis=-1)
    a, b = slide[:, 1] - slide[:, 0], slide[:, 2] - slide[:, 0]
    shown = np.sqrt(np.abs(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]) / np.maximum(area, 1e-16))
    return float(np.median(shown)) if len(shown) else 0.0


def _sides(corners: Array) -> Array:
    """Sides [3 T, 2] of triangles [T, 3]: first each one's side 0 (corners 0 and 1), then 1, then 2."""
    return np.concatenate([corners[:, [k, (k + 1) % 3]] for k in range(3)])


def _key(edges: Array) -> Array:
    return (edges.min(1) << 32) | edges.max(1)
