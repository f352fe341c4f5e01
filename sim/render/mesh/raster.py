"""Second stage of the rasteriser: which triangle each sample shows, by homogeneous edge functions.

A triangle's edge functions are linear in the pixel, and so is their sum, 1 / depth, also for triangles that cross the
camera's plane: nothing has to be clipped (Olano and Greer, Triangle Scan Conversion using 2D Homogeneous Coordinates,
1997). Samples lie in rows, `len(offsets)` of them a pixel, each row with its own place in the pixel, so that the inner
loop is plain float32 arithmetic that LLVM vectorises.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.sim.render.mesh.pack import Scene
from embodied_rl.types import Array

F32 = np.float32
_ZERO, _HALF, _ONE, _TINY = F32(0), F32(0.5), F32(1), F32(1e-20)
_FAR = F32(1e30)  # beyond what _TINY makes of a bound
_ABREAST = 8
"""Rows of a triangle that are worked out at a time."""
_NARROW = 16
"""Samples of a row up to which a plain loop is quicker than a vectorised one."""
_SLACK = F32(1e-4)
"""Share of the sum by which an edge function may be negative: neighbours leave no gap."""


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _nearest(box: Array, pose: Array, g: int, f: float, half_w: float, half_h: float, near: float) -> float:
    """Depth of the nearest corner of a part's box, or -1 when the box is out of the frustum."""
    c0, c1, c2 = float(pose[g, 0, 3]), float(pose[g, 1, 3]), float(pose[g, 2, 3])
    reach = 0.0
    for k in range(3):
        c0 += pose[g, 0, k] * box[g, k]
        c1 += pose[g, 1, k] * box[g, k]
        c2 += pose[g, 2, k] * box[g, k]
        reach += abs(pose[g, 2, k]) * box[g, 3 + k]
    if c2 + reach < near:
        return -1.0
    for axis in range(2):
        limit, centre = (half_w, c0) if axis == 0 else (half_h, c1)
        for sign in (-1.0, 1.0):
            extent = 0.0
            for k in range(3):
                extent += abs(limit * pose[g, 2, k] + sign * f * pose[g, axis, k]) * box[g, 3 + k]
            if limit * c2 + sign * f * centre < -extent:
                return -1.0
    return max(c2 - reach, near)


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _transform(vert: Array, first: int, count: int, pose: Array, g: int, f: F32, cx: F32, cy: F32, cam: Array) -> None:
    """Rows of cam float32 [V, 5]: f x, f y, depth, pixel x, pixel y."""
    a0, a1, a2, a3 = f * pose[g, 0, 0], f * pose[g, 0, 1], f * pose[g, 0, 2], f * pose[g, 0, 3]
    b0, b1, b2, b3 = f * pose[g, 1, 0], f * pose[g, 1, 1], f * pose[g, 1, 2], f * pose[g, 1, 3]
    c0, c1, c2, c3 = pose[g, 2, 0], pose[g, 2, 1], pose[g, 2, 2], pose[g, 2, 3]
    for i in range(count):
        x, y, z = vert[first + i, 0], vert[first + i, 1], vert[first + i, 2]
        u = a0 * x + a1 * y + a2 * z + a3
        v = b0 * x + b1 * y + b2 * z + b3
        d = c0 * x + c1 * y + c2 * z + c3
        over = _ONE / d
        cam[i, 0], cam[i, 1], cam[i, 2], cam[i, 3], cam[i, 4] = u, v, d, u * over + cx, v * over + cy


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _bounds(cam: Array, i0: int, i1: int, i2: int, near: F32, cx: F32, cy: F32) -> tuple[F32, F32, F32, F32]:
    """Left, right, top and bottom pixel of the part of a triangle in front of the near plane."""
    left, right, top, bottom = F32(1e9), F32(-1e9), F32(1e9), F32(-1e9)
    for e in range(3):
        a = i0 if e == 0 else (i1 if e == 1 else i2)
        b = i1 if e == 0 else (i2 if e == 1 else i0)
        if cam[a, 2] > near:
            left, right = min(left, cam[a, 3]), max(right, cam[a, 3])
            top, bottom = min(top, cam[a, 4]), max(bottom, cam[a, 4])
        if (cam[a, 2] > near) != (cam[b, 2] > near):
            s = (near - cam[a, 2]) / (cam[b, 2] - cam[a, 2])
            x = (cam[a, 0] + s * (cam[b, 0] - cam[a, 0])) / near + cx
            y = (cam[a, 1] + s * (cam[b, 1] - cam[a, 1])) / near + cy
            left, right, top, bottom = min(left, x), max(right, x), min(top, y), max(bottom, y)
    return left - _ONE, right + _ONE, top - _ONE, bottom + _ONE


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _meets(left: F32, right: F32, ya: int, yb: int, offsets: Array) -> bool:
    """Whether a small rectangle holds a sample; larger ones are not looked at."""
    if yb - ya > offsets.shape[0] or right - left >= _ONE:
        return True
    for y in range(ya, yb):
        shift = offsets[y & (offsets.shape[0] - 1)]
        if math.ceil(left - shift) <= right - shift:
            return True
    return False


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _wide(w: Array, ids: Array, cap: Array, value: F32, slope: F32, label: int) -> None:
    """Depth test along part of a row, for LLVM to vectorise."""
    for i in range(w.shape[0]):
        total = value + F32(i) * slope
        hit = (total > w[i]) & (total < cap[i])
        w[i] = total if hit else w[i]
        ids[i] = label if hit else ids[i]


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _slope(d: F32) -> F32:
    """A level edge rises a little: it then bounds all of the row or nothing."""
    return d if abs(d) > _TINY else _TINY


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _spans(
    c: Array, left: F32, right: F32, ya: int, yb: int, px: float, py: float, shifts: Array, samples: int, spans: Array
) -> None:
    """First and last column of a triangle in rows ya to yb, as spans float32 [2, yb - ya], from column px.

    c: see `_rows`. Worked out for _ABREAST rows at a time, without branches, so that LLVM makes vectors of them; the
    last lot writes, and reads of `shifts`, rows beyond yb.
    """
    sum_l, sum_d, sum_s = c[0, 0] + c[0, 1] + c[0, 2], c[1, 0] + c[1, 1] + c[1, 2], c[2, 0] + c[2, 1] + c[2, 2]
    d0, d1, d2 = c[1, 0] + _SLACK * sum_d, c[1, 1] + _SLACK * sum_d, c[1, 2] + _SLACK * sum_d
    d0, d1, d2 = _slope(d0), _slope(d1), _slope(d2)
    # an edge function changes its sign at -value / slope, which is linear in the row
    v0, v1, v2 = -_ONE / d0, -_ONE / d1, -_ONE / d2
    a0, b0 = (c[0, 0] + _SLACK * sum_l) * v0, (c[2, 0] + _SLACK * sum_s) * v0
    a1, b1 = (c[0, 1] + _SLACK * sum_l) * v1, (c[2, 1] + _SLACK * sum_s) * v1
    a2, b2 = (c[0, 2] + _SLACK * sum_l) * v2, (c[2, 2] + _SLACK * sum_s) * v2
    # edges with a falling function bound on the right: move the bound of the others out of the way, and vice versa
    l0, l1, l2 = _ZERO if d0 > _ZERO else -_FAR, _ZERO if d1 > _ZERO else -_FAR, _ZERO if d2 > _ZERO else -_FAR
    r0, r1, r2 = l0 + _FAR, l1 + _FAR, l2 + _FAR
    step = _ONE / F32(samples)
    top = (F32(ya) + _HALF) * step - F32(py)
    for lot in range(0, yb - ya, _ABREAST):
        for k in range(_ABREAST):
            shift, qy = shifts[ya + lot + k], top + F32(lot + k) * step
            x0, x1, x2 = a0 + qy * b0, a1 + qy * b1, a2 + qy * b2
            low = max(left, min(max(x0 + l0, x1 + l1, x2 + l2), right)) - shift
            high = min(right, max(min(x0 + r0, x1 + r1, x2 + r2), left - _ONE)) - shift
            ceil, floor = F32(np.int32(low)), F32(np.int32(high))
            spans[0, lot + k] = ceil + (_ONE if ceil < low else _ZERO)
            spans[1, lot + k] = floor - (_ONE if floor > high else _ZERO)


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _rows(
    c: Array, ya: int, yb: int, px: float, py: float, shifts: Array, samples: int, spans: Array, w: Array, cap: Array,
    ids: Array, label: int,
) -> bool:  # fmt: skip
    """Draw one triangle in rows ya to yb, within `spans`; whether it has any sample.

    c: values, slopes in x, slopes in y of the edge functions (rows) about pixel corner px, py.
    """
    value, slope, down = c[0, 0] + c[0, 1] + c[0, 2], c[1, 0] + c[1, 1] + c[1, 2], c[2, 0] + c[2, 1] + c[2, 2]
    base, width, step, drawn = int(px), w.shape[1], _ONE / F32(samples), False
    for y in range(ya, yb):
        if spans[0, y - ya] > spans[1, y - ya]:
            continue
        xa, xb = max(base + int(spans[0, y - ya]), 0), min(base + int(spans[1, y - ya]) + 1, width)
        if xa >= xb:
            continue
        drawn = True
        total = value + (F32(xa - base) + shifts[y]) * slope + ((F32(y) + _HALF) * step - F32(py)) * down
        if xb - xa > _NARROW:
            _wide(w[y, xa:xb], ids[y, xa:xb], cap[y, xa:xb], total, slope, label)
            continue
        for x in range(xa, xb):
            if total > w[y, x] and total < cap[y, x]:
                w[y, x], ids[y, x] = total, label
            total += slope
    return drawn


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _triangles(
    scene: Scene, first: int, count: int, eye: tuple[F32, F32, F32], cam: Array, lens: Array, offsets: Array,
    shifts: Array, spans: Array, g: int, swap: bool, w: Array, cap: Array, ids: Array, record: Array, origin: Array,
    label: int,
) -> int:  # fmt: skip
    """Draw a part's triangles; returns the next free label, which is the row of record and origin of a triangle."""
    tri, plane, rows, samples = scene.tri, scene.plane, w.shape[0], offsets.shape[0]
    c = np.empty((3, 3), np.float32)
    cx, cy, near, density = lens[1], lens[2], F32(scene.clip[0]), F32(samples)
    for t in range(first, first + count):
        if plane[t, 0] * eye[0] + plane[t, 1] * eye[1] + plane[t, 2] * eye[2] <= plane[t, 3]:
            continue
        i0, i1, i2 = tri[t, 0], tri[t, 2 if swap else 1], tri[t, 1 if swap else 2]  # a mirror turns triangles over
        z0, z1, z2 = cam[i0, 2], cam[i1, 2], cam[i2, 2]
        if min(z0, z1, z2) > near:
            x0, y0, x1, y1, x2, y2 = cam[i0, 3], cam[i0, 4], cam[i1, 3], cam[i1, 4], cam[i2, 3], cam[i2, 4]
            left, right = min(x0, x1, x2), max(x0, x1, x2)
            top, bottom = min(y0, y1, y2), max(y0, y1, y2)
        elif max(z0, z1, z2) <= near:
            continue
        else:
            left, right, top, bottom = _bounds(cam, i0, i1, i2, near, F32(cx), F32(cy))
        ya = int(max(math.ceil(density * top - _HALF), _ZERO))
        yb = int(min(math.floor(density * bottom - _HALF) + _ONE, F32(rows)))
        if ya >= yb or right <= _ZERO or left >= F32(w.shape[1]) or not _meets(left, right, ya, yb, offsets):
            continue
        # the edge functions' coefficients: rows of the inverse of the matrix of corners
        ax, ay, az = float(cam[i0, 0]), float(cam[i0, 1]), float(z0)
        bx, by, bz = float(cam[i1, 0]), float(cam[i1, 1]), float(z1)
        dx, dy, dz = float(cam[i2, 0]), float(cam[i2, 1]), float(z2)
        n0, n1, n2 = by * dz - bz * dy, bz * dx - bx * dz, bx * dy - by * dx
        det = ax * n0 + ay * n1 + az * n2
        if det >= -1e-12:  # seen from behind, or edge on
            continue
        over = 1.0 / det
        m0, m1, m2 = dy * az - dz * ay, dz * ax - dx * az, dx * ay - dy * ax
        k0, k1, k2 = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
        # about a pixel of the triangle: numbers stay small, and float32 is enough
        px = math.floor(min(max(float(left), 0.0), float(w.shape[1])))
        py = math.floor((ya + 0.5) / samples)
        ux, uy = px - cx, py - cy
        c[0, 0], c[1, 0], c[2, 0] = (n0 * ux + n1 * uy + n2) * over, n0 * over, n1 * over
        c[0, 1], c[1, 1], c[2, 1] = (m0 * ux + m1 * uy + m2) * over, m0 * over, m1 * over
        c[0, 2], c[1, 2], c[2, 2] = (k0 * ux + k1 * uy + k2) * over, k0 * over, k1 * over
        _spans(c, left - F32(px), right - F32(px), ya, yb, px, py, shifts, samples, spans)
        if _rows(c, ya, yb, px, py, shifts, samples, spans, w, cap, ids, label):
            one, two = (2, 1) if swap else (1, 2)
            for k in range(3):
                record[label, k], record[label, 3 + k] = c[k, one], c[k, two]
            record[label, 6], record[label, 7] = c[1, 0] + c[1, 1] + c[1, 2], c[2, 0] + c[2, 1] + c[2, 2]
            origin[label, 0], origin[label, 1], origin[label, 2], origin[label, 3] = int(px), int(py), t, g
            label += 1
    return label


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def raster(
    scene: Scene, pose: Array, parts: Array, lens: Array, offsets: Array, swap: bool, w: Array, cap: Array, ids: Array,
    cam: Array, record: Array, origin: Array, label: int,
) -> int:  # fmt: skip
    """Draw `parts` (int32) of a scene where they are nearer than what is there; returns the next free label.

    Args:
        pose: from `place`.
        lens: float64 [4]: pixels a unit of x / z, pixel of the axis (x, y), pixels that a decimated mesh may deviate.
        offsets: float32 [S]: where in a pixel's width its samples lie; sample s lies at (s + 0.5) / S of its height.
        swap: the poses are mirrored.
        w: float32 [S H, W]: 1 / depth of what is there; cap: float32, same shape: only smaller values are drawn.
        ids: int32, same shape: label of the triangle that is seen, a row of `record` and `origin`, or -1.
        cam: float32 [V, 5], scratch for the vertices of any rung.
        record: float32 [T, 8]: barycentric coordinates of corner 1 and 2 over depth: value, slopes in x and y,
            about the pixel corner origin[:, :2]; slopes of 1 / depth.
        origin: int32 [T, 4]: that pixel, triangle, part.
    """
    f, cx, cy, tolerance, near = lens[0], lens[1], lens[2], lens[3], scene.clip[0]
    height, width = w.shape[0] / offsets.shape[0], float(w.shape[1])
    spans, shifts = np.empty((2, w.shape[0] + _ABREAST), np.float32), np.empty(w.shape[0] + _ABREAST, np.float32)
    for y in range(shifts.shape[0]):
        shifts[y] = offsets[y % offsets.shape[0]]
    half_w, half_h = max(cx, width - cx), max(cy, height - cy)
    for g in parts:
        depth = _nearest(scene.box, pose, g, f, half_w, half_h, near)
        if depth < 0.0:
            continue
        rung = 0
        while rung + 1 < scene.errors.shape[0] and scene.errors[rung + 1] <= tolerance * depth / f:
            rung += 1
        first, count, start, triangles = scene.lods[g, rung]
        _transform(scene.vert, first, count, pose, g, F32(f), F32(cx), F32(cy), cam)
        eye = (
            -(pose[g, 0, 0] * pose[g, 0, 3] + pose[g, 1, 0] * pose[g, 1, 3] + pose[g, 2, 0] * pose[g, 2, 3]),
            -(pose[g, 0, 1] * pose[g, 0, 3] + pose[g, 1, 1] * pose[g, 1, 3] + pose[g, 2, 1] * pose[g, 2, 3]),
            -(pose[g, 0, 2] * pose[g, 0, 3] + pose[g, 1, 2] * pose[g, 1, 3] + pose[g, 2, 2] * pose[g, 2, 3]),
        )
        label = _triangles(
            scene, start, triangles, eye, cam, lens, offsets, shifts, spans, g, swap, w, cap, ids, record, origin, label
        )
    return label
