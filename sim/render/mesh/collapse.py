"""The compiled part of `decimate`: quadrics, what a collapse costs and whether it may be, and the collapses.

Names: `where` int64 [W] is the place of a wedge; `triangles` int64 [T, 3] are wedges; `around` and `start` list the
triangles at each place; `slide` float64 [W, 2] is the texture coordinate in the metres that a shift of it counts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from embodied_rl.types import Array

_BORDER_WEIGHT = 10.0
_FLIP = 0.25
"""Least cosine between a triangle's normals before and after a collapse."""
Vector = tuple[float, float, float]


@njit(cache=True, nogil=True)
def _minus(place: Array, a: Any, b: Any) -> Vector:
    return place[a, 0] - place[b, 0], place[a, 1] - place[b, 1], place[a, 2] - place[b, 2]


@njit(cache=True, nogil=True)
def _cross(a: Vector, b: Vector) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@njit(cache=True, nogil=True)
def _dot(a: Vector, b: Vector) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@njit(cache=True, nogil=True)
def _add_plane(quadrics: Array, at: int, n: Vector, offset: float, weight: float) -> None:
    """Add weight * (n . x + offset)^2 to a quadric: xx yy zz xy xz yz, x y z, 1; the last column sums weights."""
    for k in range(3):
        quadrics[at, k] += weight * n[k] * n[k]
        quadrics[at, 6 + k] += weight * n[k] * offset
    quadrics[at, 3] += weight * n[0] * n[1]
    quadrics[at, 4] += weight * n[0] * n[2]
    quadrics[at, 5] += weight * n[1] * n[2]
    quadrics[at, 9] += weight * offset * offset


@njit(cache=True, nogil=True)
def add_faces(quadrics: Array, corners: Array, place: Array) -> None:
    """Add each triangle's plane at its places, weighted by its area. quadrics: float64 [P, 11]."""
    for t in range(len(corners)):
        a, b, c = corners[t, 0], corners[t, 1], corners[t, 2]
        n = _cross(_minus(place, b, a), _minus(place, c, a))
        area = math.sqrt(_dot(n, n))
        if area > 0:
            n = n[0] / area, n[1] / area, n[2] / area
            offset = -(n[0] * place[a, 0] + n[1] * place[a, 1] + n[2] * place[a, 2])
            for k in range(3):
                _add_plane(quadrics, corners[t, k], n, offset, area)
                quadrics[corners[t, k], 10] += area


@njit(cache=True, nogil=True)
def add_borders(quadrics: Array, corners: Array, single: Array, place: Array) -> None:
    """Planes through the border edges (`single` bool [T, 3]), upright on their triangles; they only add cost."""
    for t in range(len(corners)):
        for k in range(3):
            if not single[t, k]:
                continue
            a, b = corners[t, k], corners[t, (k + 1) % 3]
            along = _minus(place, b, a)
            n = _cross(along, _cross(along, _minus(place, corners[t, (k + 2) % 3], a)))
            size = math.sqrt(_dot(n, n))
            if size > 0:
                n = n[0] / size, n[1] / size, n[2] / size
                offset = -(n[0] * place[a, 0] + n[1] * place[a, 1] + n[2] * place[a, 2])
                _add_plane(quadrics, a, n, offset, _BORDER_WEIGHT * _dot(along, along))
                _add_plane(quadrics, b, n, offset, _BORDER_WEIGHT * _dot(along, along))


@njit(cache=True, nogil=True)
def _cost(quadrics: Array, at: int, x: float, y: float, z: float) -> float:
    """Mean squared distance of a point from the planes of a quadric, m^2."""
    q = quadrics[at]
    total = q[0] * x * x + q[1] * y * y + q[2] * z * z + q[9]
    total += 2 * (q[3] * x * y + q[4] * x * z + q[5] * y * z + q[6] * x + q[7] * y + q[8] * z)
    return max(total, 0.0) / max(q[10], 1e-20)


@njit(cache=True, nogil=True)
def _wedge_onto(wedge: int, goal: int, triangles: Array, where: Array, around: Array, first: Any, last: Any) -> int:
    """The wedge of place `goal` that shares a triangle with `wedge`; -1 when there is none."""
    for i in range(first, last):
        t = around[i]
        mine, other = False, -1
        for k in range(3):
            mine = mine or triangles[t, k] == wedge
            if where[triangles[t, k]] == goal:
                other = triangles[t, k]
        if mine and other >= 0:
            return other
    return -1


@njit(cache=True, nogil=True)
def _shift(place: Array, slide: Array, where: Array, a: int, b: int, c: int, onto: int) -> tuple[float, float]:
    """Squared shift of the texture when corner a of a triangle goes to wedge `onto`, and its doubled area."""
    at = where[a]
    u, v, w = _minus(place, where[b], at), _minus(place, where[c], at), _minus(place, where[onto], at)
    uu, uv, vv, uw, vw = _dot(u, u), _dot(u, v), _dot(v, v), _dot(u, w), _dot(v, w)
    det = uu * vv - uv * uv
    if det < 1e-24:
        return 0.0, 0.0
    s, t = (vv * uw - uv * vw) / det, (uu * vw - uv * uw) / det
    total = 0.0
    for i in range(2):
        gap = slide[a, i] + s * (slide[b, i] - slide[a, i]) + t * (slide[c, i] - slide[a, i]) - slide[onto, i]
        total += gap * gap
    return total, math.sqrt(det)


@njit(cache=True, nogil=True)
def _check(
    source: int, goal: int, triangles: Array, where: Array, place: Array, slide: Array, around: Array, start: Array
) -> float:
    """Mean squared shift of the texture by a collapse, m^2; -1 when the collapse may not be."""
    first, last = start[source], start[source + 1]
    shift = area = 0.0
    for i in range(first, last):
        t = around[i]
        p0, p1, p2 = where[triangles[t, 0]], where[triangles[t, 1]], where[triangles[t, 2]]
        if p0 in (p1, p2) or p1 == p2 or source not in (p0, p1, p2):
            continue
        k = 0 if p0 == source else (1 if p1 == source else 2)
        a, b, c = triangles[t, k], triangles[t, (k + 1) % 3], triangles[t, (k + 2) % 3]
        onto = _wedge_onto(a, goal, triangles, where, around, first, last)
        if onto < 0:
            return -1.0
        if where[b] == goal or where[c] == goal:
            continue
        side = _minus(place, where[c], where[b])
        before = _cross(side, _minus(place, source, where[b]))
        after = _cross(side, _minus(place, goal, where[b]))
        if _dot(before, after) <= _FLIP * math.sqrt(_dot(before, before) * _dot(after, after)):
            return -1.0
        square, size = _shift(place, slide, where, a, b, c, onto)
        shift += square * size
        area += size
    return shift / area if area > 0 else 0.0


@njit(cache=True, nogil=True)
def candidates(
    edges: Array, border: Array, kind: Array, quadrics: Array, place: Array, slid: Array, triangles: Array,
    where: Array, slide: Array, around: Array, start: Array, limit: float,
) -> tuple[Array, Array]:  # fmt: skip
    """For each edge the cheaper way to collapse it below `limit` (m^2): moves int64 [C, 2] of places, costs [C].

    edges int64 [E, 2], border bool [E], kind int64 [P]: see `decimate._Mesh`. slid: shift of the texture so far [P].
    """
    moves, costs, count = np.empty((len(edges), 2), np.int64), np.empty(len(edges)), 0
    for e in range(len(edges)):
        best, found = limit, False
        for way in range(2):
            source, goal = edges[e, way], edges[e, 1 - way]
            if kind[source] == 2 or (kind[source] == 1 and not border[e]):
                continue
            cost = _cost(quadrics, source, place[goal, 0], place[goal, 1], place[goal, 2]) + slid[source]
            if cost > best:
                continue
            shift = _check(source, goal, triangles, where, place, slide, around, start)
            if shift < 0 or cost + shift > best:
                continue
            best, found = cost + shift, True
            moves[count, 0], moves[count, 1], costs[count] = source, goal, best
        count += found
    return moves[:count], costs[:count]


@njit(cache=True, nogil=True)
def collapse(
    moves: Array, quadrics: Array, place: Array, slid: Array, triangles: Array, where: Array, slide: Array,
    around: Array, start: Array,
) -> int:  # fmt: skip
    """Make the moves in order, but none at a place that one has touched; returns how many were made."""
    touched, made = np.zeros(len(place), np.bool_), 0
    for m in range(len(moves)):
        source, goal = moves[m, 0], moves[m, 1]
        if touched[source] or touched[goal]:
            continue
        shift = _check(source, goal, triangles, where, place, slide, around, start)
        if shift < 0:
            continue
        first, last = start[source], start[source + 1]
        onto = np.full((last - first, 3), -1, np.int64)
        for i in range(first, last):
            for k in range(3):
                if where[triangles[around[i], k]] == source:
                    onto[i - first, k] = _wedge_onto(
                        triangles[around[i], k], goal, triangles, where, around, first, last
                    )
        for i in range(first, last):
            for k in range(3):
                if onto[i - first, k] >= 0:
                    triangles[around[i], k] = onto[i - first, k]
        slid[goal] = max(slid[goal], slid[source] + shift)
        for k in range(quadrics.shape[1]):
            quadrics[goal, k] += quadrics[source, k]
        touched[source] = touched[goal] = True
        made += 1
    return made


@njit(cache=True, nogil=True)
def _root(parent: Array, a: Any) -> int:
    while parent[a] != a:
        parent[a] = parent[parent[a]]
        a = parent[a]
    return a


@njit(cache=True, nogil=True)
def without_crumbs(triangles: Array, where: Array, place: Array, error: float) -> Array:
    """The triangles without those of connected pieces smaller than the error."""
    parent = np.arange(len(place))
    for t in range(len(triangles)):
        for k in range(2):
            a, b = _root(parent, where[triangles[t, k]]), _root(parent, where[triangles[t, k + 1]])
            parent[max(a, b)] = min(a, b)
    low, high = np.full((len(place), 3), np.inf), np.full((len(place), 3), -np.inf)
    for t in range(len(triangles)):
        piece = _root(parent, where[triangles[t, 0]])
        for k in range(3):
            for j in range(3):
                value = place[where[triangles[t, k]], j]
                low[piece, j], high[piece, j] = min(low[piece, j], value), max(high[piece, j], value)
    keep = np.zeros(len(triangles), np.bool_)
    for t in range(len(triangles)):
        piece, square = _root(parent, where[triangles[t, 0]]), 0.0
        for j in range(3):
            square += (high[piece, j] - low[piece, j]) ** 2
        keep[t] = 0.25 * square > error * error
    return triangles[keep]


@njit(cache=True, nogil=True)
def best_corners(triangles: Array, faces: Array, start: Array, order: Array, normals: Array) -> Array:
    """For each corner, of the original corners at its wedge, the one whose normal agrees best with the triangle's."""
    out = np.empty((len(triangles), 3), np.int32)
    for t in range(len(triangles)):
        for k in range(3):
            best = -np.inf
            for i in range(start[triangles[t, k]], start[triangles[t, k] + 1]):
                n = order[i]
                dot = normals[n, 0] * faces[t, 0] + normals[n, 1] * faces[t, 1] + normals[n, 2] * faces[t, 2]
                if dot > best:
                    best = dot
                    out[t, k] = n
    return out
