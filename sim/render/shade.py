"""Third stage of the ray caster: the lighting equation of OpenGL's fixed pipeline, once a visible pixel.

Source: OpenGL 2.1 specification, section 2.14.1, with a local viewer and a single colour: the highlight is added before
the texture, which then darkens it too. MuJoCo leaves both at that. Evaluated per pixel where OpenGL interpolates
between vertices. No shadows, no reflections.

Pixels are sorted by geom and shaded in blocks of one geom. A block's quantities are rows of a flat array, BLOCK apart:
with one base address and constant distances LLVM can prove the loops independent, and vectorises them. For the same
reason the loops read plain scalars, and take no slices of arrays.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from embodied_rl.sim.render.scene import BOX, CAPSULE, CYLINDER, ELLIPSOID, LIGHT_DIRECTIONAL, PLANE, Scene
from embodied_rl.types import Array

F32 = np.float32
Vector = tuple[np.float32, np.float32, np.float32]
_ZERO, _HALF, _ONE, _WHITE = F32(0), F32(0.5), F32(1), F32(255)
_TINY = F32(1e-20)
_STEEPEST = F32(0.05)
_ROOT_TWO = F32(2**0.5)
_SHARE = F32(1 / 255)
BLOCK = 256
# Rows of a block: point, normal, direction to the eye (geom frame), primary colour, specular colour, and the light's
# unit direction, strength and squared cosine of the half angle; pixel and depth.
_P0, _P1, _P2, _N0, _N1, _N2, _V0, _V1, _V2 = (BLOCK * i for i in range(9))
_RED, _GREEN, _BLUE, _SHINE_R, _SHINE_G, _SHINE_B = (BLOCK * i for i in range(9, 15))
_L0, _L1, _L2, _STRENGTH, _LOBE = (BLOCK * i for i in range(15, 20))
_X, _Y, _DEPTH = (BLOCK * i for i in range(20, 23))
_ROWS = 23


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _points(b: Array, n: int, rays: Array, g: int) -> None:
    """Surface points and unit directions to the eye from pixel positions and depths."""
    o0, o1, o2 = rays[g, 0, 0], rays[g, 0, 1], rays[g, 0, 2]
    d0, d1, d2 = rays[g, 1, 0], rays[g, 1, 1], rays[g, 1, 2]
    a0, a1, a2 = rays[g, 2, 0], rays[g, 2, 1], rays[g, 2, 2]
    c0, c1, c2 = rays[g, 3, 0], rays[g, 3, 1], rays[g, 3, 2]
    for k in range(n):
        x, y, depth = b[_X + k], b[_Y + k], b[_DEPTH + k]
        v0, v1, v2 = d0 + x * a0 + y * c0, d1 + x * a1 + y * c1, d2 + x * a2 + y * c2
        unit = -_ONE / math.sqrt(v0 * v0 + v1 * v1 + v2 * v2)
        b[_P0 + k], b[_P1 + k], b[_P2 + k] = o0 + depth * v0, o1 + depth * v1, o2 + depth * v2
        b[_V0 + k], b[_V1 + k], b[_V2 + k] = unit * v0, unit * v1, unit * v2


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _box_normals(b: Array, n: int, s0: F32, s1: F32, s2: F32) -> None:
    for k in range(n):
        p0, p1, p2 = b[_P0 + k], b[_P1 + k], b[_P2 + k]
        gap0, gap1, gap2 = s0 - abs(p0), s1 - abs(p1), s2 - abs(p2)
        least = min(gap0, gap1, gap2)
        b[_N0 + k] = (_ONE if p0 > _ZERO else -_ONE) if gap0 == least else _ZERO
        b[_N1 + k] = (_ONE if p1 > _ZERO else -_ONE) if gap1 == least else _ZERO
        b[_N2 + k] = (_ONE if p2 > _ZERO else -_ONE) if gap2 == least else _ZERO


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _cylinder_normals(b: Array, n: int, radius: F32, half: F32) -> None:
    for k in range(n):
        p0, p1, p2 = b[_P0 + k], b[_P1 + k], b[_P2 + k]
        rho = math.sqrt(p0 * p0 + p1 * p1 + _TINY)
        cap = half - abs(p2) < radius - rho
        b[_N0 + k] = _ZERO if cap else p0 / rho
        b[_N1 + k] = _ZERO if cap else p1 / rho
        b[_N2 + k] = (_ONE if p2 > _ZERO else -_ONE) if cap else _ZERO


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _round_normals(b: Array, n: int, s0: F32, s1: F32, s2: F32, half: F32) -> None:
    """Gradient of sum (p_i / s_i)^2, p_2 first moved by at most `half` towards 0 (a capsule's inner line)."""
    i0, i1, i2 = _ONE / (s0 * s0), _ONE / (s1 * s1), _ONE / (s2 * s2)
    for k in range(n):
        p2 = b[_P2 + k]
        p0, p1, p2 = b[_P0 + k] * i0, b[_P1 + k] * i1, (p2 - max(-half, min(half, p2))) * i2
        unit = _ONE / math.sqrt(p0 * p0 + p1 * p1 + p2 * p2 + _TINY)
        b[_N0 + k], b[_N1 + k], b[_N2 + k] = p0 * unit, p1 * unit, p2 * unit


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _normals(b: Array, n: int, kind: int, size: Array, g: int) -> None:
    """Unit outward normals at the surface points."""
    if kind == PLANE:
        for k in range(n):
            b[_N0 + k], b[_N1 + k], b[_N2 + k] = _ZERO, _ZERO, _ONE
    elif kind == BOX:
        _box_normals(b, n, size[g, 0], size[g, 1], size[g, 2])
    elif kind == CYLINDER:
        _cylinder_normals(b, n, size[g, 0], size[g, 1])
    elif kind == ELLIPSOID:
        _round_normals(b, n, size[g, 0], size[g, 1], size[g, 2], _ZERO)
    else:
        _round_normals(b, n, size[g, 0], size[g, 0], size[g, 0], size[g, 1] if kind == CAPSULE else _ZERO)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _reach(b: Array, n: int, kind: int, shape: Array, lights: Array, g: int, light: int) -> None:
    """Unit directions to a light and its strength at each point, after attenuation and spot cone."""
    d0, d1, d2 = lights[g, light, 3], lights[g, light, 4], lights[g, light, 5]
    if kind == LIGHT_DIRECTIONAL:
        for k in range(n):
            b[_L0 + k], b[_L1 + k], b[_L2 + k], b[_STRENGTH + k] = -d0, -d1, -d2, _ONE
        return
    o0, o1, o2 = lights[g, light, 0], lights[g, light, 1], lights[g, light, 2]
    near, linear, square = shape[light, 0], shape[light, 1], shape[light, 2]
    for k in range(n):
        l0, l1, l2 = o0 - b[_P0 + k], o1 - b[_P1 + k], o2 - b[_P2 + k]
        distance = math.sqrt(l0 * l0 + l1 * l1 + l2 * l2 + _TINY)
        unit = _ONE / distance
        b[_L0 + k], b[_L1 + k], b[_L2 + k] = l0 * unit, l1 * unit, l2 * unit
        b[_STRENGTH + k] = _ONE / (near + distance * (linear + distance * square))
    cone, exponent = shape[light, 3], shape[light, 4]
    for k in range(n):
        along = -(b[_L0 + k] * d0 + b[_L1 + k] * d1 + b[_L2 + k] * d2)
        if along <= _ZERO or along < cone:
            b[_STRENGTH + k] = _ZERO
        else:
            b[_STRENGTH + k] *= math.exp2(exponent * math.log2(along))


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _diffuse(b: Array, n: int, colors: Array, light: int) -> None:
    """Add a light's ambient and diffuse colour; leave the squared cosine between normal and half vector in _LOBE."""
    ambient_r, ambient_g, ambient_b = colors[light, 0], colors[light, 1], colors[light, 2]
    diffuse_r, diffuse_g, diffuse_b = colors[light, 3], colors[light, 4], colors[light, 5]
    for k in range(n):
        n0, n1, n2 = b[_N0 + k], b[_N1 + k], b[_N2 + k]
        l0, l1, l2 = b[_L0 + k], b[_L1 + k], b[_L2 + k]
        strength = b[_STRENGTH + k]
        cosine = n0 * l0 + n1 * l1 + n2 * l2
        facing = strength * max(cosine, _ZERO)
        b[_RED + k] += strength * ambient_r + facing * diffuse_r
        b[_GREEN + k] += strength * ambient_g + facing * diffuse_g
        b[_BLUE + k] += strength * ambient_b + facing * diffuse_b
        h0, h1, h2 = l0 + b[_V0 + k], l1 + b[_V1 + k], l2 + b[_V2 + k]
        lobe = max(n0 * h0 + n1 * h1 + n2 * h2, _ZERO)
        lobe = lobe * lobe / (h0 * h0 + h1 * h1 + h2 * h2 + _TINY)
        b[_LOBE + k] = lobe if cosine > _ZERO else _ZERO


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _specular(b: Array, n: int, look: Array, g: int, colors: Array, light: int) -> None:
    """Add a light's highlight, where it is bright enough to be seen."""
    specular, exponent, floor = look[g, 4], _HALF * look[g, 5], look[g, 6]
    if specular <= _ZERO:
        return
    for k in range(n):
        if b[_LOBE + k] > floor:
            shine = specular * b[_STRENGTH + k] * math.exp2(exponent * math.log2(b[_LOBE + k]))
            b[_SHINE_R + k] += shine * colors[light, 6]
            b[_SHINE_G + k] += shine * colors[light, 7]
            b[_SHINE_B + k] += shine * colors[light, 8]


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _finish(b: Array, n: int, look: Array, g: int) -> None:
    """Material colour, clamped as OpenGL does before texturing, in 0..255."""
    red, green, blue = look[g, 0], look[g, 1], look[g, 2]
    for k in range(n):
        b[_RED + k] = _WHITE * min(b[_RED + k] * red, _ONE)
        b[_GREEN + k] = _WHITE * min(b[_GREEN + k] * green, _ONE)
        b[_BLUE + k] = _WHITE * min(b[_BLUE + k] * blue, _ONE)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _texel(texels: Array, start: int, width: int, x0: int, x1: int, y0: int, y1: int, fx: F32, fy: F32) -> Vector:
    """Bilinear mix (0..255) of the texels in columns x0, x1 and rows y0, y1."""
    a, c = start + 3 * (y0 * width + x0), start + 3 * (y0 * width + x1)
    e, f = start + 3 * (y1 * width + x0), start + 3 * (y1 * width + x1)
    wa, wc, we, wf = (_ONE - fx) * (_ONE - fy), fx * (_ONE - fy), (_ONE - fx) * fy, fx * fy
    return (
        wa * F32(texels[a]) + wc * F32(texels[c]) + we * F32(texels[e]) + wf * F32(texels[f]),
        wa * F32(texels[a + 1]) + wc * F32(texels[c + 1]) + we * F32(texels[e + 1]) + wf * F32(texels[f + 1]),
        wa * F32(texels[a + 2]) + wc * F32(texels[c + 2]) + we * F32(texels[e + 2]) + wf * F32(texels[f + 2]),
    )


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _texture(
    b: Array, n: int, texels: Array, table: Array, mips: Array, texture: int, su: F32, sv: F32, pixel: F32
) -> None:
    """Multiply a block's colour, highlight included, by a 2d texture, from the mip level that fits the pixel's size."""
    base, last = mips[texture, 0], mips[texture, 1] - 1
    most = _HALF * pixel * max(su * F32(table[base, 1]), sv * F32(table[base, 2]))
    for k in range(n):
        slope = abs(b[_N0 + k] * b[_V0 + k] + b[_N1 + k] * b[_V1 + k] + b[_N2 + k] * b[_V2 + k])
        step = most * b[_DEPTH + k] / max(slope, _STEEPEST)
        level = base
        while step > _ROOT_TWO and level - base < last:
            step *= _HALF
            level += 1
        start, width, height = table[level, 0], table[level, 1], table[level, 2]
        u, v = _HALF * su * b[_P0 + k] - _HALF, -_HALF * sv * b[_P1 + k] - _HALF
        x, y = (
            (u - math.floor(u)) * F32(width) + F32(width) - _HALF,
            (v - math.floor(v)) * F32(height) + F32(height) - _HALF,
        )
        x0, y0 = int(x), int(y)
        fx, fy = x - F32(x0), y - F32(y0)
        x0, y0 = (x0 - width if x0 >= width else x0), (y0 - height if y0 >= height else y0)
        x1, y1 = (0 if x0 + 1 >= width else x0 + 1), (0 if y0 + 1 >= height else y0 + 1)
        red, green, blue = _texel(texels, start, width, min(x0, width - 1), x1, min(y0, height - 1), y1, fx, fy)
        b[_RED + k] = red * _SHARE * min(b[_RED + k] + _WHITE * b[_SHINE_R + k], _WHITE)
        b[_GREEN + k] = green * _SHARE * min(b[_GREEN + k] + _WHITE * b[_SHINE_G + k], _WHITE)
        b[_BLUE + k] = blue * _SHARE * min(b[_BLUE + k] + _WHITE * b[_SHINE_B + k], _WHITE)
        b[_SHINE_R + k] = b[_SHINE_G + k] = b[_SHINE_B + k] = _ZERO


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _sky(texels: Array, start: int, width: int, dx: F32, dy: F32, dz: F32) -> Vector:
    """Background colour in a world direction; cube faces right, left, up, down, front, back (OpenGL), world z up."""
    ax, ay, az = abs(dx), abs(dz), abs(dy)
    if ax >= ay and ax >= az:
        face, s, t, major = (0, dy, -dz, ax) if dx > _ZERO else (1, -dy, -dz, ax)
    elif ay >= az:
        face, s, t, major = (2, dx, -dy, ay) if dz > _ZERO else (3, dx, dy, ay)
    else:
        face, s, t, major = (4, dx, -dz, az) if dy < _ZERO else (5, -dx, -dz, az)
    scale, edge = _HALF * F32(width), F32(width - 1)
    x = min(max(scale * (s / major + _ONE) - _HALF, _ZERO), edge)
    y = min(max(scale * (t / major + _ONE) - _HALF, _ZERO), edge)
    x0, y0 = int(x), int(y)
    x1, y1 = min(x0 + 1, width - 1), min(y0 + 1, width - 1)
    start += 3 * face * width * width
    return _texel(texels, start, width, x0, x1, y0, y1, x - F32(x0), y - F32(y0))


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _background(scene: Scene, ids: Array, axes: Array, lens: Array, out: Array) -> None:
    """Colour the pixels that show no geom: the sky, or black."""
    texels, sky = scene.texels, scene.sky
    start, width = (scene.mip_table[sky, 0], scene.mip_table[sky, 1]) if sky >= 0 else (0, 0)
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
                    texels,
                    start,
                    width,
                    u * view[0, 0] + v * view[0, 1] - view[0, 2],
                    u * view[1, 0] + v * view[1, 1] - view[1, 2],
                    u * view[2, 0] + v * view[2, 1] - view[2, 2],
                )
            out[y, x, 0], out[y, x, 1], out[y, x, 2] = color


@njit(cache=True, nogil=True, error_model="numpy")
def _sort(ids: Array, count: int, order: Array) -> Array:
    """Write y << 16 | x of the pixels that show geom 0, then 1, ...; return where each geom begins."""
    ends = np.zeros(count + 1, np.int64)
    for y in range(ids.shape[0]):
        for x in range(ids.shape[1]):
            ends[ids[y, x] + 1] += 1
    ends[0] = 0
    for g in range(count):
        ends[g + 1] += ends[g]
    starts = ends.copy()
    for y in range(ids.shape[0]):
        for x in range(ids.shape[1]):
            g = ids[y, x]
            if g >= 0:
                order[starts[g]] = y << 16 | x
                starts[g] += 1
    return ends


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _surfaces(scene: Scene, w: Array, ids: Array, rays: Array, lights: Array, pixel: F32, out: Array) -> None:
    """Colour the pixels that show a geom."""
    kinds, look, textures, scale = scene.geom_kind, scene.geom_look, scene.geom_texture, scene.geom_texscale
    texels, table, mips = scene.texels, scene.mip_table, scene.texture_mips
    light_kind, shape, colors = scene.light_kind, scene.light_shape, scene.light_color
    size = scene.geom_size.astype(F32)
    order = np.empty(ids.size, np.int32)
    starts = _sort(ids, kinds.shape[0], order)
    b = np.empty(_ROWS * BLOCK, F32)
    for g in range(kinds.shape[0]):
        for first in range(starts[g], starts[g + 1], BLOCK):
            n = min(BLOCK, starts[g + 1] - first)
            for k in range(n):
                place = order[first + k]
                b[_X + k], b[_Y + k], b[_DEPTH + k] = (
                    F32(place & 0xFFFF),
                    F32(place >> 16),
                    _ONE / w[place >> 16, place & 0xFFFF],
                )
                b[_RED + k] = b[_GREEN + k] = b[_BLUE + k] = look[g, 3]
                b[_SHINE_R + k] = b[_SHINE_G + k] = b[_SHINE_B + k] = _ZERO
            _points(b, n, rays, g)
            _normals(b, n, kinds[g], size, g)
            for light in range(light_kind.shape[0]):
                _reach(b, n, light_kind[light], shape, lights, g, light)
                _diffuse(b, n, colors, light)
                _specular(b, n, look, g, colors, light)
            _finish(b, n, look, g)
            if textures[g] >= 0:
                _texture(b, n, texels, table, mips, textures[g], scale[g, 0], scale[g, 1], pixel)
            for k in range(n):
                y, x = order[first + k] >> 16, order[first + k] & 0xFFFF
                out[y, x, 0] = min(b[_RED + k] + _WHITE * b[_SHINE_R + k], _WHITE)
                out[y, x, 1] = min(b[_GREEN + k] + _WHITE * b[_SHINE_G + k], _WHITE)
                out[y, x, 2] = min(b[_BLUE + k] + _WHITE * b[_SHINE_B + k], _WHITE)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy", forceinline=True)
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
