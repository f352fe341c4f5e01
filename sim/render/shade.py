"""Shading of the ray caster: the lighting equation of OpenGL's fixed pipeline, once a visible pixel.

Source: OpenGL 2.1 specification, section 2.14.1, with a local viewer and a separate specular colour, as MuJoCo sets it;
evaluated per pixel where OpenGL interpolates between vertices. No shadows, no reflections.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.sim.render.scene import BOX, CYLINDER, ELLIPSOID, LIGHT_DIRECTIONAL, LIGHT_SPOT, PLANE, SPHERE, Scene
from embodied_rl.types import Array

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_TINY = np.float32(1e-20)
_STEEPEST = np.float32(0.05)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _normal(kind: int, p0: np.float32, p1: np.float32, p2: np.float32, size: Array) -> tuple[np.float32, np.float32, np.float32]:
    """Unit outward normal at a point on the surface, geom frame."""
    if kind == PLANE:
        return _ZERO, _ZERO, _ONE
    if kind == BOX:
        gap0, gap1, gap2 = size[0] - abs(p0), size[1] - abs(p1), size[2] - abs(p2)
        if gap0 < gap1 and gap0 < gap2:
            return (_ONE if p0 > _ZERO else -_ONE), _ZERO, _ZERO
        if gap1 < gap2:
            return _ZERO, (_ONE if p1 > _ZERO else -_ONE), _ZERO
        return _ZERO, _ZERO, (_ONE if p2 > _ZERO else -_ONE)
    if kind == ELLIPSOID:
        p0 /= size[0] * size[0]
        p1 /= size[1] * size[1]
        p2 /= size[2] * size[2]
    elif kind == CYLINDER:
        if size[1] - abs(p2) < size[0] - math.sqrt(p0 * p0 + p1 * p1):
            return _ZERO, _ZERO, (_ONE if p2 > _ZERO else -_ONE)
        p2 = _ZERO
    elif kind != SPHERE:
        p2 -= max(-size[1], min(size[1], p2))
    scale = _ONE / math.sqrt(p0 * p0 + p1 * p1 + p2 * p2 + _TINY)
    return p0 * scale, p1 * scale, p2 * scale


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _texel(scene: Scene, level: int, x: np.float32, y: np.float32, wrap: bool, out: Array) -> None:
    """Bilinear sample of one level at texel coordinates (centres at k + 0.5); out float32 [3] in 0..255."""
    width, height = scene.mip_table[level, 1], scene.mip_table[level, 2]
    left, top = math.floor(x - _HALF), math.floor(y - _HALF)
    fx, fy = x - _HALF - np.float32(left), y - _HALF - np.float32(top)
    out[0] = out[1] = out[2] = _ZERO
    for corner in range(4):
        column, row = int(left) + (corner & 1), int(top) + (corner >> 1)
        weight = (fx if corner & 1 else _ONE - fx) * (fy if corner >> 1 else _ONE - fy)
        if wrap:
            column, row = column % width, row % height
        else:
            column, row = min(max(column, 0), width - 1), min(max(row, 0), height - 1)
        at = scene.mip_table[level, 0] + 3 * (row * width + column)
        for k in range(3):
            out[k] += weight * np.float32(scene.texels[at + k])


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _textured(scene: Scene, geom: int, p0: np.float32, p1: np.float32, footprint: np.float32, out: Array) -> None:
    """Colour of a 2d texture at the surface point, from the mip level that fits a pixel of `footprint` metres."""
    mips = scene.texture_mips[scene.geom_texture[geom]]
    su, sv = scene.geom_texscale[geom, 0], scene.geom_texscale[geom, 1]
    base = mips[0]
    texels = footprint * _HALF * max(su * np.float32(scene.mip_table[base, 1]), sv * np.float32(scene.mip_table[base, 2]))
    level = base + min(mips[1] - 1, max(0, int(math.log2(max(texels, _ONE)) + _HALF)))
    u, v = _HALF * su * p0 - _HALF, -_HALF * sv * p1 - _HALF
    width, height = np.float32(scene.mip_table[level, 1]), np.float32(scene.mip_table[level, 2])
    _texel(scene, level, u * width, v * height, True, out)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _sky(scene: Scene, dx: np.float32, dy: np.float32, dz: np.float32, out: Array) -> None:
    """Background colour in a world direction; cube faces right, left, up, down, front, back (OpenGL), world z up."""
    cx, cy, cz = dx, dz, -dy
    ax, ay, az = abs(cx), abs(cy), abs(cz)
    if ax >= ay and ax >= az:
        face, s, t, major = (0, -cz, -cy, ax) if cx > _ZERO else (1, cz, -cy, ax)
    elif ay >= az:
        face, s, t, major = (2, cx, cz, ay) if cy > _ZERO else (3, cx, -cz, ay)
    else:
        face, s, t, major = (4, cx, -cy, az) if cz > _ZERO else (5, -cx, -cy, az)
    width = np.float32(scene.mip_table[scene.sky, 1])
    row = _HALF * (t / major + _ONE) * width
    row = min(max(row, _HALF), width - _HALF) + np.float32(face) * width
    _texel(scene, scene.sky, _HALF * (s / major + _ONE) * width, row, False, out)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _light(
    scene: Scene, light: int, local: Array, look: Array,
    p0: np.float32, p1: np.float32, p2: np.float32, n0: np.float32, n1: np.float32, n2: np.float32,
    v0: np.float32, v1: np.float32, v2: np.float32,
) -> tuple[np.float32, np.float32, np.float32]:  # fmt: skip
    """Weights of the ambient, diffuse and specular colour of a light; `local`: position and direction, geom frame."""
    strength = _ONE
    if scene.light_kind[light] == LIGHT_DIRECTIONAL:
        l0, l1, l2 = -local[3], -local[4], -local[5]
    else:
        l0, l1, l2 = local[0] - p0, local[1] - p1, local[2] - p2
        square = l0 * l0 + l1 * l1 + l2 * l2
        distance = math.sqrt(square)
        scale = _ONE / (distance + _TINY)
        l0, l1, l2 = l0 * scale, l1 * scale, l2 * scale
        shape = scene.light_shape[light]
        strength = _ONE / (shape[0] + shape[1] * distance + shape[2] * square)
        if scene.light_kind[light] == LIGHT_SPOT:
            along = -(l0 * local[3] + l1 * local[4] + l2 * local[5])
            strength = strength * along ** shape[4] if along > _ZERO and along >= shape[3] else _ZERO
    facing = n0 * l0 + n1 * l1 + n2 * l2
    if facing <= _ZERO:
        return strength, _ZERO, _ZERO
    shine = _ZERO
    h0, h1, h2 = l0 + v0, l1 + v1, l2 + v2
    lobe = n0 * h0 + n1 * h1 + n2 * h2
    half_square = h0 * h0 + h1 * h1 + h2 * h2
    if lobe > _ZERO and lobe * lobe > look[6] * half_square:
        shine = look[4] * math.exp2(_HALF * look[5] * math.log2(lobe * lobe / half_square))
    return strength, strength * facing, strength * shine


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def shade(scene: Scene, w: Array, ids: Array, frames: Array, lights: Array, axes: Array, lens: Array, out: Array) -> None:
    """Colour every pixel: out float32 [H, W, 3] in 0..255.

    w: 1 / depth. ids: index of the geom or -1. frames: float32 [G, 4, 3] (project.view_frame); lights: float32
    [G, L, 6] in geom frames; axes: camera axes in the world (columns right, up, back); lens as in project.view_frame.
    """
    height, width = ids.shape
    texel = np.empty(3, np.float32)
    size = scene.geom_size.astype(np.float32)
    view = axes.astype(np.float32)
    pixel = np.float32(lens[2])
    for y in range(height):
        dy = np.float32(y)
        for x in range(width):
            g = ids[y, x]
            dx = np.float32(x)
            if g < 0:
                texel[0] = texel[1] = texel[2] = _ZERO
                if scene.sky >= 0:
                    u, v = (dx + _HALF) * pixel - np.float32(lens[0]), np.float32(lens[1]) - (dy + _HALF) * pixel
                    _sky(
                        scene, u * view[0, 0] + v * view[0, 1] - view[0, 2], u * view[1, 0] + v * view[1, 1] - view[1, 2],
                        u * view[2, 0] + v * view[2, 1] - view[2, 2], texel,
                    )  # fmt: skip
                for k in range(3):
                    out[y, x, k] = texel[k]
                continue
            frame = frames[g]
            depth = _ONE / w[y, x]
            v0 = -(frame[1, 0] + dx * frame[2, 0] + dy * frame[3, 0])
            v1 = -(frame[1, 1] + dx * frame[2, 1] + dy * frame[3, 1])
            v2 = -(frame[1, 2] + dx * frame[2, 2] + dy * frame[3, 2])
            p0, p1, p2 = frame[0, 0] - depth * v0, frame[0, 1] - depth * v1, frame[0, 2] - depth * v2
            scale = _ONE / math.sqrt(v0 * v0 + v1 * v1 + v2 * v2)
            v0, v1, v2 = v0 * scale, v1 * scale, v2 * scale
            n0, n1, n2 = _normal(scene.geom_kind[g], p0, p1, p2, size[g])
            look = scene.geom_look[g]
            red = green = blue = look[3]
            shine_r = shine_g = shine_b = _ZERO
            for light in range(scene.light_kind.shape[0]):
                ambient, diffuse, shine = _light(
                    scene, light, lights[g, light], look, p0, p1, p2, n0, n1, n2, v0, v1, v2
                )
                color = scene.light_color[light]
                red += ambient * color[0] + diffuse * color[3]
                green += ambient * color[1] + diffuse * color[4]
                blue += ambient * color[2] + diffuse * color[5]
                shine_r += shine * color[6]
                shine_g += shine * color[7]
                shine_b += shine * color[8]
            red, green, blue = min(red * look[0], _ONE), min(green * look[1], _ONE), min(blue * look[2], _ONE)
            if scene.geom_texture[g] >= 0:
                slope = max(abs(n0 * v0 + n1 * v1 + n2 * v2), _STEEPEST)
                _textured(scene, g, p0, p1, depth * pixel / slope, texel)
            else:
                texel[0] = texel[1] = texel[2] = np.float32(255)
            out[y, x, 0] = min(texel[0] * red + np.float32(255) * shine_r, np.float32(255))
            out[y, x, 1] = min(texel[1] * green + np.float32(255) * shine_g, np.float32(255))
            out[y, x, 2] = min(texel[2] * blue + np.float32(255) * shine_b, np.float32(255))
