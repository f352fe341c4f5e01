"""Third stage of the ray caster: the lighting equation of OpenGL's fixed pipeline, once a visible pixel.

Source: OpenGL 2.1 specification, section 2.14.1, with a local viewer and a separate specular colour, as MuJoCo sets it;
evaluated per pixel where OpenGL interpolates between vertices. No shadows, no reflections.

The inner functions take bare arrays and indices: a slice or the whole Scene as an argument costs more than the shading.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.sim.render.scene import BOX, CYLINDER, ELLIPSOID, LIGHT_DIRECTIONAL, LIGHT_SPOT, PLANE, SPHERE, Scene
from embodied_rl.types import Array

F32 = np.float32
Vector = tuple[np.float32, np.float32, np.float32]
_ZERO, _HALF, _ONE, _WHITE = F32(0), F32(0.5), F32(1), F32(255)
_TINY = F32(1e-20)
_STEEPEST = F32(0.05)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _normal(kind: int, p0: F32, p1: F32, p2: F32, size: Array, g: int) -> Vector:
    """Unit outward normal at a point on the surface, geom frame."""
    if kind == PLANE:
        return _ZERO, _ZERO, _ONE
    if kind == BOX:
        gap0, gap1, gap2 = size[g, 0] - abs(p0), size[g, 1] - abs(p1), size[g, 2] - abs(p2)
        if gap0 < gap1 and gap0 < gap2:
            return (_ONE if p0 > _ZERO else -_ONE), _ZERO, _ZERO
        if gap1 < gap2:
            return _ZERO, (_ONE if p1 > _ZERO else -_ONE), _ZERO
        return _ZERO, _ZERO, (_ONE if p2 > _ZERO else -_ONE)
    if kind == ELLIPSOID:
        p0 /= size[g, 0] * size[g, 0]
        p1 /= size[g, 1] * size[g, 1]
        p2 /= size[g, 2] * size[g, 2]
    elif kind == CYLINDER:
        if size[g, 1] - abs(p2) < size[g, 0] - math.sqrt(p0 * p0 + p1 * p1):
            return _ZERO, _ZERO, (_ONE if p2 > _ZERO else -_ONE)
        p2 = _ZERO
    elif kind != SPHERE:
        p2 -= max(-size[g, 1], min(size[g, 1], p2))
    scale = _ONE / math.sqrt(p0 * p0 + p1 * p1 + p2 * p2 + _TINY)
    return p0 * scale, p1 * scale, p2 * scale


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _texel(texels: Array, table: Array, level: int, x: F32, y: F32, wrap: bool) -> Vector:
    """Bilinear sample (0..255) of one level at texel coordinates (centres at k + 0.5)."""
    start, width, height = table[level, 0], table[level, 1], table[level, 2]
    left, top = math.floor(x - _HALF), math.floor(y - _HALF)
    fx, fy = x - _HALF - F32(left), y - _HALF - F32(top)
    red = green = blue = _ZERO
    for corner in range(4):
        column, row = int(left) + (corner & 1), int(top) + (corner >> 1)
        weight = (fx if corner & 1 else _ONE - fx) * (fy if corner >> 1 else _ONE - fy)
        if wrap:
            column, row = column % width, row % height
        else:
            column, row = min(max(column, 0), width - 1), min(max(row, 0), height - 1)
        at = start + 3 * (row * width + column)
        red += weight * F32(texels[at])
        green += weight * F32(texels[at + 1])
        blue += weight * F32(texels[at + 2])
    return red, green, blue


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _textured(
    texels: Array, table: Array, mips: Array, scale: Array, g: int, texture: int, p0: F32, p1: F32, footprint: F32
) -> Vector:
    """Colour of a 2d texture at the surface point, from the mip level that fits a pixel of `footprint` metres."""
    base = mips[texture, 0]
    across = scale[g, 0] * F32(table[base, 1])
    down = scale[g, 1] * F32(table[base, 2])
    step = footprint * _HALF * max(across, down)
    level = base + min(mips[texture, 1] - 1, max(0, int(math.log2(max(step, _ONE)) + _HALF)))
    u, v = _HALF * scale[g, 0] * p0 - _HALF, -_HALF * scale[g, 1] * p1 - _HALF
    return _texel(texels, table, level, u * F32(table[level, 1]), v * F32(table[level, 2]), True)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _sky(texels: Array, table: Array, sky: int, dx: F32, dy: F32, dz: F32) -> Vector:
    """Background colour in a world direction; cube faces right, left, up, down, front, back (OpenGL), world z up."""
    cx, cy, cz = dx, dz, -dy
    ax, ay, az = abs(cx), abs(cy), abs(cz)
    if ax >= ay and ax >= az:
        face, s, t, major = (0, -cz, -cy, ax) if cx > _ZERO else (1, cz, -cy, ax)
    elif ay >= az:
        face, s, t, major = (2, cx, cz, ay) if cy > _ZERO else (3, cx, -cz, ay)
    else:
        face, s, t, major = (4, cx, -cy, az) if cz > _ZERO else (5, -cx, -cy, az)
    width = F32(table[sky, 1])
    row = min(max(_HALF * (t / major + _ONE) * width, _HALF), width - _HALF) + F32(face) * width
    return _texel(texels, table, sky, _HALF * (s / major + _ONE) * width, row, False)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _reach(
    kind: int, shape: Array, lights: Array, g: int, light: int, p0: F32, p1: F32, p2: F32
) -> tuple[F32, F32, F32, F32]:
    """Unit direction to a light and its strength at a point, after attenuation and spot cone."""
    if kind == LIGHT_DIRECTIONAL:
        return -lights[g, light, 3], -lights[g, light, 4], -lights[g, light, 5], _ONE
    l0, l1, l2 = lights[g, light, 0] - p0, lights[g, light, 1] - p1, lights[g, light, 2] - p2
    distance = math.sqrt(l0 * l0 + l1 * l1 + l2 * l2 + _TINY)
    l0, l1, l2 = l0 / distance, l1 / distance, l2 / distance
    strength = _ONE / (shape[light, 0] + distance * (shape[light, 1] + distance * shape[light, 2]))
    if kind == LIGHT_SPOT:
        along = -(l0 * lights[g, light, 3] + l1 * lights[g, light, 4] + l2 * lights[g, light, 5])
        if along <= _ZERO or along < shape[light, 3]:
            return l0, l1, l2, _ZERO
        strength *= math.exp2(shape[light, 4] * math.log2(along))
    return l0, l1, l2, strength


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _shine(look: Array, g: int, n: Vector, h0: F32, h1: F32, h2: F32) -> F32:
    """Specular weight for the unnormalised half vector h; below look[6] it could not be seen."""
    lobe = n[0] * h0 + n[1] * h1 + n[2] * h2
    square = h0 * h0 + h1 * h1 + h2 * h2
    if lobe <= _ZERO or lobe * lobe <= look[g, 6] * square:
        return _ZERO
    return look[g, 4] * math.exp2(_HALF * look[g, 5] * math.log2(lobe * lobe / square))


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _background(scene: Scene, ids: Array, axes: Array, lens: Array, out: Array) -> None:
    """Colour the pixels that show no geom: the sky, or black."""
    texels, table, sky = scene.texels, scene.mip_table, scene.sky
    view = axes.astype(F32)
    pixel, left, top = F32(lens[2]), F32(lens[0]), F32(lens[1])
    for y in range(ids.shape[0]):
        v = top - (F32(y) + _HALF) * pixel
        for x in range(ids.shape[1]):
            if ids[y, x] >= 0:
                continue
            color = _ZERO, _ZERO, _ZERO
            if sky >= 0:
                u = (F32(x) + _HALF) * pixel - left
                color = _sky(
                    texels, table, sky, u * view[0, 0] + v * view[0, 1] - view[0, 2],
                    u * view[1, 0] + v * view[1, 1] - view[1, 2], u * view[2, 0] + v * view[2, 1] - view[2, 2],
                )  # fmt: skip
            out[y, x, 0], out[y, x, 1], out[y, x, 2] = color


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _surfaces(scene: Scene, w: Array, ids: Array, rays: Array, lights: Array, pixel: F32, out: Array) -> None:
    """Colour the pixels that show a geom."""
    kinds, look, textures, scale = scene.geom_kind, scene.geom_look, scene.geom_texture, scene.geom_texscale
    texels, table, mips = scene.texels, scene.mip_table, scene.texture_mips
    light_kind, shape, colors = scene.light_kind, scene.light_shape, scene.light_color
    size = scene.geom_size.astype(F32)
    for y in range(ids.shape[0]):
        dy = F32(y)
        for x in range(ids.shape[1]):
            g = ids[y, x]
            if g < 0:
                continue
            dx = F32(x)
            depth = _ONE / w[y, x]
            v0 = -(rays[g, 1, 0] + dx * rays[g, 2, 0] + dy * rays[g, 3, 0])
            v1 = -(rays[g, 1, 1] + dx * rays[g, 2, 1] + dy * rays[g, 3, 1])
            v2 = -(rays[g, 1, 2] + dx * rays[g, 2, 2] + dy * rays[g, 3, 2])
            p0, p1, p2 = rays[g, 0, 0] - depth * v0, rays[g, 0, 1] - depth * v1, rays[g, 0, 2] - depth * v2
            unit = _ONE / math.sqrt(v0 * v0 + v1 * v1 + v2 * v2)
            v0, v1, v2 = v0 * unit, v1 * unit, v2 * unit
            n = _normal(kinds[g], p0, p1, p2, size, g)
            red = green = blue = look[g, 3]
            shine_r = shine_g = shine_b = _ZERO
            for light in range(light_kind.shape[0]):
                l0, l1, l2, strength = _reach(light_kind[light], shape, lights, g, light, p0, p1, p2)
                facing = strength * max(n[0] * l0 + n[1] * l1 + n[2] * l2, _ZERO)
                red += strength * colors[light, 0] + facing * colors[light, 3]
                green += strength * colors[light, 1] + facing * colors[light, 4]
                blue += strength * colors[light, 2] + facing * colors[light, 5]
                if facing > _ZERO:
                    shine = strength * _shine(look, g, n, l0 + v0, l1 + v1, l2 + v2)
                    shine_r += shine * colors[light, 6]
                    shine_g += shine * colors[light, 7]
                    shine_b += shine * colors[light, 8]
            tint = _WHITE, _WHITE, _WHITE
            if textures[g] >= 0:
                slope = max(abs(n[0] * v0 + n[1] * v1 + n[2] * v2), _STEEPEST)
                tint = _textured(texels, table, mips, scale, g, textures[g], p0, p1, depth * pixel / slope)
            out[y, x, 0] = min(tint[0] * min(red * look[g, 0], _ONE) + _WHITE * shine_r, _WHITE)
            out[y, x, 1] = min(tint[1] * min(green * look[g, 1], _ONE) + _WHITE * shine_g, _WHITE)
            out[y, x, 2] = min(tint[2] * min(blue * look[g, 2], _ONE) + _WHITE * shine_b, _WHITE)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _average(color: Array, samples: int, out: Array) -> None:
    """Mean over samples x samples blocks, rounded to uint8."""
    share = F32(1.0 / (samples * samples))
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            for k in range(3):
                total = _ZERO
                for j in range(samples):
                    for i in range(samples):
                        total += color[y * samples + j, x * samples + i, k]
                out[y, x, k] = np.uint8(total * share + _HALF)


@njit(cache=True, nogil=True, error_model="numpy")
def shade(
    scene: Scene,
    w: Array,
    ids: Array,
    rays: Array,
    lights: Array,
    views: Array,
    lenses: Array,
    samples: int,
    out: Array,
) -> None:
    """Colour V views from w and ids (`raster.raster`) into out, uint8 [V, H / samples, W / samples, 3].

    The other arguments are fields of `Frame` (raycast.py).
    """
    color = np.empty((*ids.shape[1:], 3), F32)
    for view in range(out.shape[0]):
        _background(scene, ids[view], views[view], lenses[view], color)
        _surfaces(scene, w[view], ids[view], rays[view], lights[view], F32(lenses[view, 2]), color)
        _average(color, samples, out[view])
