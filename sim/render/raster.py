"""Second stage of the ray caster: which geom each pixel shows, in float32 loops that LLVM can vectorise."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.sim.render.project import POLYTOPE
from embodied_rl.types import Array

_ZERO = np.float32(0)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _polytope_row(coef: Array, dy: np.float32, nearest: np.float32, label: int, w_row: Array, id_row: Array) -> None:
    e0, e1, e2 = coef[0] + dy * coef[2], coef[3] + dy * coef[5], coef[6] + dy * coef[8]
    x0, x1, x2 = coef[9] + dy * coef[11], coef[12] + dy * coef[14], coef[15] + dy * coef[17]
    x3, x4 = coef[18] + dy * coef[20], coef[21] + dy * coef[23]
    for i in range(w_row.shape[0]):
        dx = np.float32(i)
        entry = min(e0 + dx * coef[1], e1 + dx * coef[4], e2 + dx * coef[7])
        leave = max(x0 + dx * coef[10], x1 + dx * coef[13], x2 + dx * coef[16])
        leave = max(leave, x3 + dx * coef[19], x4 + dx * coef[22])
        hit = (entry >= leave) & (entry > w_row[i]) & (entry < nearest)
        w_row[i] = entry if hit else w_row[i]
        id_row[i] = label if hit else id_row[i]


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _quadric_row(
    coef: Array,
    line: np.float32,
    q0: np.float32,
    q1: np.float32,
    first: np.float32,
    dy: np.float32,
    nearest: np.float32,
    label: int,
    w_row: Array,
    id_row: Array,
) -> None:
    e0, x0, x1 = coef[13] + dy * coef[15], coef[16] + dy * coef[18], coef[19] + dy * coef[21]
    for i in range(w_row.shape[0]):
        dx = np.float32(i)
        mid = first + dx
        square = q0 + mid * (q1 + mid * coef[6])
        root = math.sqrt(max(square, _ZERO))
        centre = line + mid * coef[1]
        entry = min(centre + root + coef[12], e0 + dx * coef[14])
        leave = max(centre + coef[11] * root, x0 + dx * coef[17], x1 + dx * coef[20])
        hit = (square >= _ZERO) & (entry >= leave) & (entry > w_row[i]) & (entry < nearest)
        w_row[i] = entry if hit else w_row[i]
        id_row[i] = label if hit else id_row[i]


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _draw(shape: int, rect: Array, exact: Array, near: np.float32, label: int, w: Array, ids: Array) -> None:
    """Keep `label` where the primitive is nearer than `w`."""
    coef = exact.astype(np.float32)
    first = np.float32(rect[0] - exact[9])
    for y in range(rect[2], rect[3]):
        w_row = w[y, rect[0] : rect[1]]
        id_row = ids[y, rect[0] : rect[1]]
        dy = np.float32(y - rect[2])
        if shape == POLYTOPE:
            _polytope_row(coef, dy, near, label, w_row, id_row)
        else:
            my = y - exact[10]
            line = np.float32(exact[0] + my * exact[2])
            q0 = np.float32(exact[3] + my * (exact[5] + my * exact[8]))
            q1 = np.float32(exact[4] + my * exact[7])
            _quadric_row(coef, line, q0, q1, first, dy, near, label, w_row, id_row)


@njit(cache=True, nogil=True, error_model="numpy")
def raster(
    clip: Array, counts: Array, labels: Array, shapes: Array, rects: Array, coefs: Array, w: Array, ids: Array
) -> None:
    """Fill w (float32 [V, H, W], 1 / depth in 1/m) and ids (int32 [V, H, W], label of the nearest primitive or -1).

    The other arguments are fields of `Frame` (raycast.py); clip: near and far distance in metres.
    """
    near = np.float32(1.0 / clip[0])
    w[:] = 1.0 / clip[1]
    ids[:] = -1
    for view in range(counts.shape[0]):
        for i in range(counts[view]):
            _draw(shapes[view, i], rects[view, i], coefs[view, i], near, labels[view, i], w[view], ids[view])
