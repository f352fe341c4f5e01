"""Pixel rectangles of the ray caster's geoms: where on the image a convex part can be seen."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.sim.render.scene import BOX, CYLINDER
from embodied_rl.types import Array

NEVER = 1e30
"""A bound that never binds (entry +, exit -)."""


@njit(cache=True, nogil=True, error_model="numpy")
def _bound_ellipsoid(mat: Array, half: Array, centre: Array, lens: Array, near: float, box: Array) -> int:
    """Widen `box` (u0, u1, v0, v1 at unit depth) by an ellipsoid's outline; 0 behind the camera, 1 done, 2 crosses it.

    mat: ellipsoid axes (rows) in the camera's frame (right, up, forward); centre likewise. Outline: the dual conic
    R S^2 R^T - c c^T (Hartley and Zisserman, Multiple View Geometry, 8.3).
    """
    depth = 0.0
    for k in range(3):
        depth += (mat[k, 2] * half[k]) ** 2
    reach = math.sqrt(depth)
    if centre[2] + reach < near:
        return 0
    if centre[2] - reach < near:
        return 2
    d33 = depth - centre[2] * centre[2]
    for axis in range(2):
        d11 = -centre[axis] * centre[axis]
        d13 = -centre[axis] * centre[2]
        for k in range(3):
            square = half[k] * half[k]
            d11 += mat[k, axis] * mat[k, axis] * square
            d13 += mat[k, axis] * mat[k, 2] * square
        root = math.sqrt(max(d13 * d13 - d11 * d33, 0.0))
        box[2 * axis] = min(box[2 * axis], (d13 + root) / d33)
        box[2 * axis + 1] = max(box[2 * axis + 1], (d13 - root) / d33)
    return 1


@njit(cache=True, nogil=True, error_model="numpy")
def _bound_box(mat: Array, half: Array, centre: Array, near: float, box: Array) -> int:
    """As `_bound_ellipsoid`, for the eight corners of a box."""
    reach = abs(mat[0, 2] * half[0]) + abs(mat[1, 2] * half[1]) + abs(mat[2, 2] * half[2])
    if centre[2] + reach < near:
        return 0
    if centre[2] - reach < near:
        return 2
    for corner in range(8):
        a = half[0] if corner & 1 else -half[0]
        b = half[1] if corner & 2 else -half[1]
        c = half[2] if corner & 4 else -half[2]
        z = centre[2] + a * mat[0, 2] + b * mat[1, 2] + c * mat[2, 2]
        u = (centre[0] + a * mat[0, 0] + b * mat[1, 0] + c * mat[2, 0]) / z
        v = (centre[1] + a * mat[0, 1] + b * mat[1, 1] + c * mat[2, 1]) / z
        box[0], box[1] = min(box[0], u), max(box[1], u)
        box[2], box[3] = min(box[2], v), max(box[3], v)
    return 1


@njit(cache=True, nogil=True, error_model="numpy")
def bounds(
    shape: int, frame: Array, size: Array, shift: float, axes: Array, lens: Array, near: float, rect: Array
) -> bool:
    """Pixel rectangle x0, x1, y0, y1 (ends excluded) of one convex part; False when nothing of it can be seen.

    shape: BOX, ELLIPSOID (centre moved by `shift` along z), or CYLINDER (its two end discs). axes: rows are the geom's
    axes in the camera's frame (right, up, forward). rect comes in as the whole image.
    """
    box = np.array((NEVER, -NEVER, NEVER, -NEVER))
    centre = np.empty(3)
    parts = 2 if shape == CYLINDER else 1
    half = size.copy()
    if shape == CYLINDER:
        half[1] = size[0]
        half[2] = 0.0
    seen = 0
    for part in range(parts):
        along = shift
        if shape == CYLINDER:
            along = size[1] if part else -size[1]
        for i in range(3):
            centre[i] = (along - frame[0, 2]) * axes[2, i] - frame[0, 0] * axes[0, i] - frame[0, 1] * axes[1, i]
        if shape == BOX:
            state = _bound_box(axes, half, centre, near, box)
        else:
            state = _bound_ellipsoid(axes, half, centre, lens, near, box)
        if state == 2:
            return True
        seen += state
    if seen < parts:
        # One disc in front and one behind: the whole image; both behind: nothing.
        return seen > 0
    width, height = rect[1], rect[3]
    rect[0] = max(0, math.floor((box[0] + lens[0]) / lens[2] - 0.5))
    rect[1] = min(width, math.ceil((box[1] + lens[0]) / lens[2] + 0.5))
    rect[2] = max(0, math.floor((lens[1] - box[3]) / lens[2] - 0.5))
    rect[3] = min(height, math.ceil((lens[1] - box[2]) / lens[2] + 0.5))
    return rect[0] < rect[1] and rect[2] < rect[3]
