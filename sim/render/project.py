"""First stage of the ray caster: geoms become screen-space primitives with a rectangle and a few coefficients.

Depth is kept as w = 1 / t, where t is the distance along the camera's axis. In w, a plane is a linear function of the
pixel, and the first hit of a quadric is linear plus the root of a quadratic, so the inner loops of `raster.py` need
neither a division nor a per-pixel ray. A convex geom is hit where its nearest entry is not behind its farthest exit.

A ray o + t d with d linear in the pixel meets the face x_i = s at t = (s - o_i) / d_i, so w = d_i / (s - o_i).
With a = d.d, b = o.d, c = o.o - 1 a unit sphere gives c w^2 + 2 b w + a = 0, so w = (-b ± sqrt(b^2 - a c)) / c.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from embodied_rl.sim.render.bounds import NEVER, bounds
from embodied_rl.sim.render.scene import BOX, CAPSULE, CYLINDER, ELLIPSOID, PLANE, SPHERE, Scene
from embodied_rl.types import Array

POLYTOPE, QUADRIC = 0, 1
MAX_PARTS = 3
"""Most primitives that one geom becomes (a capsule: its side and two ends)."""
COEFS = 30
"""Coefficients of a primitive.

POLYTOPE: 3 entry and 5 exit functions (value at the rectangle's corner, slope in x, slope in y), unused ones constant.
QUADRIC (about the rectangle's centre): linear part (3); square (1, x, y, xx, xy, yy) of the root; centre x, y; sign of
the root in the exit; 0 or NEVER added to the entry; one entry and two exit functions (about the corner) for the caps.
"""


@njit(cache=True, nogil=True, error_model="numpy")
def _view_frame(pos: Array, mat: Array, eye: Array, axes: Array, lens: Array, out: Array) -> None:
    """Ray of pixel (x, y) in the geom's frame: out rows o, d(0, 0), slope of d in x, slope of d in y; float64 [4, 3].

    pos, mat: geom in the world. eye, axes: camera in the world (columns right, up, back). lens: tan of half the width,
    tan of half the height, pixel size at unit depth.
    """
    for i in range(3):
        origin = 0.0
        right = 0.0
        up = 0.0
        back = 0.0
        for k in range(3):
            origin += mat[k, i] * (eye[k] - pos[k])
            right += mat[k, i] * axes[k, 0]
            up += mat[k, i] * axes[k, 1]
            back += mat[k, i] * axes[k, 2]
        out[0, i] = origin
        out[1, i] = (0.5 * lens[2] - lens[0]) * right + (lens[1] - 0.5 * lens[2]) * up - back
        out[2, i] = lens[2] * right
        out[3, i] = -lens[2] * up


@njit(cache=True, nogil=True, error_model="numpy")
def _linear(coef: Array, at: int, frame: Array, axis: int, gap: float, rect: Array) -> None:
    """The face `gap` ahead of the origin along `axis`, as a function of the pixel about the rectangle's corner."""
    corner = frame[1, axis] + rect[0] * frame[2, axis] + rect[2] * frame[3, axis]
    coef[at] = corner / gap
    coef[at + 1] = frame[2, axis] / gap
    coef[at + 2] = frame[3, axis] / gap


@njit(cache=True, nogil=True, error_model="numpy")
def _slab(coef: Array, entry: int, exits: int, frame: Array, axis: int, half: float, rect: Array) -> tuple[int, int]:
    """Add the faces x_axis = ±half; return the next free entry and exit positions."""
    origin = frame[0, axis]
    ahead = half - origin
    behind = -half - origin
    tiny = 1e-9 * (half + 1e-3)
    if ahead < -tiny:
        _linear(coef, entry, frame, axis, ahead, rect)
        _linear(coef, exits, frame, axis, behind, rect)
        return entry + 3, exits + 3
    if behind > tiny:
        _linear(coef, entry, frame, axis, behind, rect)
        _linear(coef, exits, frame, axis, ahead, rect)
        return entry + 3, exits + 3
    _linear(coef, exits, frame, axis, max(ahead, tiny), rect)
    _linear(coef, exits + 3, frame, axis, min(behind, -tiny), rect)
    return entry, exits + 6


@njit(cache=True, nogil=True, error_model="numpy")
def _polytope(coef: Array, frame: Array, size: Array, rect: Array, plane: bool) -> bool:
    """Fill `coef` for a box or a plane; False when the camera is inside, or behind the plane."""
    for i in range(3):
        coef[3 * i], coef[3 * i + 1], coef[3 * i + 2] = NEVER, 0.0, 0.0
    for i in range(5):
        coef[9 + 3 * i], coef[10 + 3 * i], coef[11 + 3 * i] = -NEVER, 0.0, 0.0
    entry = 0
    exits = 9
    if plane:
        if frame[0, 2] <= 0.0:
            return False
        # entry and exit must be the same numbers, or rounding would tear holes
        _linear(coef, entry, frame, 2, -frame[0, 2], rect)
        _linear(coef, exits, frame, 2, -frame[0, 2], rect)
        entry += 3
        exits += 3
    else:
        entry, exits = _slab(coef, entry, exits, frame, 2, size[2], rect)
    for axis in range(2):
        if not plane or size[axis] > 0.0:
            entry, exits = _slab(coef, entry, exits, frame, axis, size[axis], rect)
    return entry > 0


@njit(cache=True, nogil=True, error_model="numpy")
def _quadric(coef: Array, frame: Array, scale: Array, shift: float, dims: int, rect: Array) -> float:
    """Fill the root part of `coef` for sum ((x_i - shift_z) / scale_i)^2 = 1 over `dims` axes; return c = o.o - 1."""
    mid_x = 0.5 * (rect[0] + rect[1] - 1)
    mid_y = 0.5 * (rect[2] + rect[3] - 1)
    c = -1.0
    dd = xx = yy = dx = dy = xy = b = bx = by = 0.0
    for i in range(dims):
        origin = (frame[0, i] - (shift if i == 2 else 0.0)) / scale[i]
        ray = (frame[1, i] + mid_x * frame[2, i] + mid_y * frame[3, i]) / scale[i]
        slope_x = frame[2, i] / scale[i]
        slope_y = frame[3, i] / scale[i]
        c += origin * origin
        b += origin * ray
        bx += origin * slope_x
        by += origin * slope_y
        dd += ray * ray
        dx += ray * slope_x
        dy += ray * slope_y
        xx += slope_x * slope_x
        xy += slope_x * slope_y
        yy += slope_y * slope_y
    if abs(c) < 1e-9:
        c = 1e-9
    square = 1.0 / (c * c)
    coef[0], coef[1], coef[2] = -b / c, -bx / c, -by / c
    coef[3] = (b * b - c * dd) * square
    coef[4] = 2 * (b * bx - c * dx) * square
    coef[5] = 2 * (b * by - c * dy) * square
    coef[6] = (bx * bx - c * xx) * square
    coef[7] = 2 * (bx * by - c * xy) * square
    coef[8] = (by * by - c * yy) * square
    coef[9], coef[10] = mid_x, mid_y
    coef[11], coef[12] = -1.0, 0.0
    coef[13], coef[14], coef[15] = NEVER, 0.0, 0.0
    for at in (16, 19):
        coef[at], coef[at + 1], coef[at + 2] = -NEVER, 0.0, 0.0
    return c


@njit(cache=True, nogil=True, error_model="numpy")
def _cylinder(coef: Array, frame: Array, size: Array, rect: Array) -> bool:
    """Fill `coef` for a cylinder along z (size: radius, half length); False when the camera is inside."""
    scale = np.array((size[0], size[0], 1.0))
    outside = _quadric(coef, frame, scale, 0.0, 2, rect) > 0.0
    if not outside:
        # The side is only left, never entered: its exit is the positive root.
        coef[11], coef[12] = 1.0, NEVER
    entry, _ = _slab(coef, 13, 16, frame, 2, size[1], rect)
    return outside or entry > 13


@njit(cache=True, nogil=True, error_model="numpy")
def _inside_capsule(frame: Array, size: Array) -> bool:
    z = max(-size[1], min(size[1], frame[0, 2]))
    return frame[0, 0] ** 2 + frame[0, 1] ** 2 + (frame[0, 2] - z) ** 2 <= size[0] * size[0]


@njit(cache=True, nogil=True, error_model="numpy")
def _add_primitives(
    kind: int,
    frame: Array,
    size: Array,
    axes: Array,
    lens: Array,
    near: float,
    image: Array,
    shapes: Array,
    rects: Array,
    coefs: Array,
) -> int:
    """Write the primitives (at most three) of one geom to the rows of shapes, rects, coefs; return their number.

    A capsule is a cylinder and two spheres: where the camera is outside, the nearest of their hits is the capsule's.
    axes: rows are the geom's axes in the camera's frame (right, up, forward). image: 0, width, 0, height.
    """
    count = 0
    rects[0] = image
    if kind in (PLANE, BOX):
        if kind == BOX and not bounds(BOX, frame, size, 0.0, axes, lens, near, rects[0]):
            return 0
        shapes[0] = POLYTOPE
        return 1 if _polytope(coefs[0], frame, size, rects[0], kind == PLANE) else 0
    if kind == CAPSULE and _inside_capsule(frame, size):
        return 0
    if kind in (CAPSULE, CYLINDER):
        if bounds(CYLINDER, frame, size, 0.0, axes, lens, near, rects[0]) and _cylinder(
            coefs[0], frame, size, rects[0]
        ):
            shapes[0] = QUADRIC
            count = 1
        if kind == CYLINDER:
            return count
    scale = size.copy()
    if kind in (SPHERE, CAPSULE):
        scale[1] = scale[2] = scale[0]
    for end in range(2 if kind == CAPSULE else 1):
        shift = 0.0
        if kind == CAPSULE:
            shift = size[1] if end else -size[1]
        rects[count] = image
        if bounds(ELLIPSOID, frame, scale, shift, axes, lens, near, rects[count]):
            shapes[count] = QUADRIC
            if _quadric(coefs[count], frame, scale, shift, 3, rects[count]) > 0.0:
                count += 1
    return count


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
    """World position and direction of every light, float64 [L, 6]; the headlight shines along the camera's axis."""
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
def project(
    scene: Scene,
    xpos: Array,
    xmat: Array,
    cameras: Array,
    height: int,
    width: int,
    counts: Array,
    labels: Array,
    shapes: Array,
    rects: Array,
    coefs: Array,
    lenses: Array,
    views: Array,
    rays: Array,
    lights: Array,
) -> None:
    """Set up V views: write what `Frame` in raycast.py documents. Poses as in `Renderer.render`, xmat [nbody, 3, 3]."""
    image = np.array((0, width, 0, height), np.int32)
    eye, pos, mat, seen, ray = np.empty(3), np.empty(3), np.empty((3, 3)), np.empty((3, 3)), np.empty((4, 3))
    for view in range(cameras.shape[0]):
        camera, axes, lens = cameras[view], views[view], lenses[view]
        body = int(scene.camera_body[camera])
        _place(body, scene.camera_pos[camera], scene.camera_mat[camera], xpos, xmat, eye, axes)
        tan = scene.camera_tan[camera]
        lens[0], lens[1], lens[2] = tan * width / height, tan, 2.0 * tan / height
        world = _world_lights(scene, xpos, xmat, eye, axes)
        total = 0
        for geom in range(scene.geom_kind.shape[0]):
            _place(scene.geom_body[geom], scene.geom_pos[geom], scene.geom_mat[geom], xpos, xmat, pos, mat)
            _view_frame(pos, mat, eye, axes, lens, ray)
            for i in range(3):
                for j in range(3):
                    seen[i, j] = mat[0, i] * axes[0, j] + mat[1, i] * axes[1, j] + mat[2, i] * axes[2, j]
                seen[i, 2] = -seen[i, 2]
            added = _add_primitives(
                scene.geom_kind[geom],
                ray,
                scene.geom_size[geom],
                seen,
                lens,
                scene.clip[0],
                image,
                shapes[view, total:],
                rects[view, total:],
                coefs[view, total:],
            )
            labels[view, total : total + added] = geom
            total += added
            if added:
                rays[view, geom] = ray
                _localise(world, pos, mat, lights[view, geom])
        counts[view] = total
