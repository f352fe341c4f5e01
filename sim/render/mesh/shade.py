"""Third stage of the rasteriser: colours, once a pixel and part (as multisampling does), added up to an image.

Source of the lighting: OpenGL 2.1 specification, section 2.14.1, with a local viewer and a single colour, as MuJoCo
sets it: the highlight is added before the texture, which darkens it too. Evaluated per fragment where OpenGL
interpolates between vertices. No shadows.

Fragments are shaded in blocks, whose quantities are rows of a flat array, BLOCK apart: with one base address and
constant distances LLVM can prove the loops independent, and vectorises them.

Whatever one kernel calls is inlined (`forceinline`), here and in the other rasteriser files. Otherwise the process that
compiles runs a callee's own code, and later ones, which load the caller from numba's cache, the copy in the caller's
code; under fastmath the two round differently, and now and then a pixel differs by one level.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from embodied_rl.sim.render.mesh.pack import Scene
from embodied_rl.sim.render.scene import LIGHT_SPOT
from embodied_rl.types import Array

F32 = np.float32
Color = tuple[np.float32, np.float32, np.float32]
_ZERO, _HALF, _ONE, _WHITE, _TINY = F32(0), F32(0.5), F32(1), F32(255), F32(1e-20)
_ROOT_TWO, _SHARE = F32(2**0.5), F32(1 / 255)
_MIXED, _NEXT = F32(2**0.25), F32(2**0.75)
"""Texels a pixel from which a level is mixed with the next one, and from which that one is read alone."""
# least-squares fits of log2(1 + m) and 2 ** f - 1 on 0..1, both to 5e-6
_L = tuple(F32(c) for c in (1.44252727, -0.71791348, 0.45654043, -0.275969, 0.1201003, -0.02528552))
_E = tuple(F32(c) for c in (0.69300488, 0.2415396, 0.05176606, 0.01368945))
BLOCK = 256
# Rows of a block: position in the camera's frame, unit normal, unit direction to the eye, material (rgb, emission,
# specular, half the exponent), texture colour, light so far (diffuse, highlight).
(_X, _Y, _Z, _N0, _N1, _N2, _V0, _V1, _V2, _MR, _MG, _MB, _EMIT, _SPEC, _EXP, _TR, _TG, _TB, _R, _G, _B, _SR, _SG,
 _SB) = (BLOCK * i for i in range(24))  # fmt: skip
ROWS = 24


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _fragments(w: Array, ids: Array, origin: Array, offsets: Array, frag: Array, where: Array) -> int:
    """One fragment a pixel and part: label, pixel, samples, part; mean position (pixels) and 1 / depth."""
    samples, width, count = offsets.shape[0], w.shape[1], 0
    for y in range(w.shape[0] // samples):
        for x in range(width):
            start = count
            for s in range(samples):
                label = ids[samples * y + s, x]
                if label < 0:
                    continue
                g, at = origin[label, 3], -1
                for i in range(start, count):
                    if frag[i, 3] == g:
                        at = i
                if at < 0:
                    at = count
                    count += 1
                    frag[at, 0], frag[at, 1], frag[at, 2], frag[at, 3] = label, y * width + x, 0, g
                    where[at, 0] = where[at, 1] = where[at, 2] = _ZERO
                frag[at, 2] += 1
                where[at, 0] += F32(x) + offsets[s]
                where[at, 1] += F32(y) + (F32(s) + _HALF) / F32(samples)
                where[at, 2] += w[samples * y + s, x]
            for i in range(start, count):
                over = _ONE / F32(frag[i, 2])
                where[i, 0] *= over
                where[i, 1] *= over
                where[i, 2] *= over
    return count


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _texel(texels: Array, start: int, width: int, height: int, x: F32, y: F32) -> Color:
    """Bilinear mix, 0..255; x and y in texels, in range, repeating."""
    x0, y0 = int(x), int(y)
    fx, fy = x - F32(x0), y - F32(y0)
    x0, y0 = (x0 - width if x0 >= width else x0), (y0 - height if y0 >= height else y0)
    x1, y1 = (0 if x0 + 1 >= width else x0 + 1), (0 if y0 + 1 >= height else y0 + 1)
    a, b = texels[start + y0 * width + x0], texels[start + y0 * width + x1]
    c, d = texels[start + y1 * width + x0], texels[start + y1 * width + x1]
    wa, wb, wc, wd = (_ONE - fx) * (_ONE - fy), fx * (_ONE - fy), (_ONE - fx) * fy, fx * fy
    return (
        wa * F32(a & 255) + wb * F32(b & 255) + wc * F32(c & 255) + wd * F32(d & 255),
        wa * F32(a >> 8 & 255) + wb * F32(b >> 8 & 255) + wc * F32(c >> 8 & 255) + wd * F32(d >> 8 & 255),
        wa * F32(a >> 16 & 255) + wb * F32(b >> 16 & 255) + wc * F32(c >> 16 & 255) + wd * F32(d >> 16 & 255),
    )


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _cube(r0: F32, r1: F32, r2: F32) -> tuple[int, F32, F32, F32]:
    """Face, coordinates 0..1 and major axis of a direction, as OpenGL numbers the faces of a cube texture."""
    a0, a1, a2 = abs(r0), abs(r1), abs(r2)
    if a0 >= a1 and a0 >= a2:
        face, s, t, major = (0, -r2, -r1, a0) if r0 > _ZERO else (1, r2, -r1, a0)
    elif a1 >= a2:
        face, s, t, major = (2, r0, r2, a1) if r1 > _ZERO else (3, r0, -r2, a1)
    else:
        face, s, t, major = (4, r0, -r1, a2) if r2 > _ZERO else (5, -r0, -r1, a2)
    major = max(major, _TINY)
    return face, _HALF * (s / major + _ONE), _HALF * (t / major + _ONE), major


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _face_texel(texels: Array, start: int, width: int, u: F32, v: F32) -> Color:
    edge = F32(width - 1)
    x, y = min(max(u * F32(width) - _HALF, _ZERO), edge), min(max(v * F32(width) - _HALF, _ZERO), edge)
    return _texel(texels, start, width, width, x, y)


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _cube_color(texels: Array, table: Array, mips: Array, tex: Any, r0: F32, r1: F32, r2: F32, size: F32) -> Color:
    """Cube texture in a direction; size: of a pixel in the direction's unit."""
    face, u, v, major = _cube(r0, r1, r2)
    level, last = mips[tex, 0], mips[tex, 0] + mips[tex, 1] - 1
    step = size / (F32(2.0) * major) * F32(table[level, 1])
    while step > _ROOT_TWO and level < last:
        step *= _HALF
        level += 1
    width = table[level, 1]
    start = table[level, 0] + (face * width * width if mips[tex, 2] == 6 else 0)
    return _face_texel(texels, start, width, u, v)


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _level_color(texels: Array, table: Array, level: int, u: F32, v: F32) -> Color:
    """One level of a 2d texture, which repeats."""
    width, height = table[level, 1], table[level, 2]
    x = (u - np.floor(u)) * F32(width) + F32(width) - _HALF
    y = (v - np.floor(v)) * F32(height) + F32(height) - _HALF
    x = min(x - F32(width) if x >= F32(width) else x, F32(width) - F32(1e-3))
    y = min(y - F32(height) if y >= F32(height) else y, F32(height) - F32(1e-3))
    return _texel(texels, table[level, 0], width, height, x, y)


@njit(nogil=True, fastmath=True, error_model="numpy", inline="always")
def _flat_color(
    texels: Array, table: Array, mips: Array, tex: Any, u: F32, v: F32, along_u: F32, along_v: F32
) -> Color:
    """2d texture; along_u, along_v: how far its coordinates go in a pixel.

    Of two mip levels only one is read over half of the way between them, as Mesa's software driver does.
    """
    level, last = mips[tex, 0], mips[tex, 0] + mips[tex, 1] - 1
    step = max(along_u * F32(table[level, 1]), along_v * F32(table[level, 2]))
    while step >= _NEXT and level < last:
        step *= _HALF
        level += 1
    red, green, blue = _level_color(texels, table, level, u, v)
    if step > _MIXED and level < last:
        mix = (step - _MIXED) / (_NEXT - _MIXED)
        r, g, b = _level_color(texels, table, level + 1, u, v)
        red, green, blue = red + mix * (r - red), green + mix * (g - green), blue + mix * (b - blue)
    return red, green, blue


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _gather(
    scene: Scene, n: int, first: int, frag: Array, where: Array, record: Array, origin: Array, pose: Array, f: F32,
    cx: F32, cy: F32, dim: F32, b: Array,
) -> None:  # fmt: skip
    """Attributes and texture colours of a block's fragments. dim: factor on the material's colour."""
    corner, look, cube, texture = scene.corner, scene.look, scene.cube, scene.texture
    texels, table, mips = scene.texels, scene.table, scene.mips
    for k in range(n):
        label, sx, sy, depth = frag[first + k, 0], where[first + k, 0], where[first + k, 1], _ONE / where[first + k, 2]
        t, g = origin[label, 2], origin[label, 3]
        dx, dy = sx - F32(origin[label, 0]), sy - F32(origin[label, 1])
        b1 = (record[label, 0] + dx * record[label, 1] + dy * record[label, 2]) * depth
        b2 = (record[label, 3] + dx * record[label, 4] + dy * record[label, 5]) * depth
        b1, b2 = min(max(b1, _ZERO), _ONE), min(max(b2, _ZERO), _ONE)
        b0 = _ONE - b1 - b2
        n0 = b0 * corner[t, 0, 0] + b1 * corner[t, 1, 0] + b2 * corner[t, 2, 0]
        n1 = b0 * corner[t, 0, 1] + b1 * corner[t, 1, 1] + b2 * corner[t, 2, 1]
        n2 = b0 * corner[t, 0, 2] + b1 * corner[t, 1, 2] + b2 * corner[t, 2, 2]
        b[_N0 + k] = pose[g, 0, 0] * n0 + pose[g, 0, 1] * n1 + pose[g, 0, 2] * n2
        b[_N1 + k] = pose[g, 1, 0] * n0 + pose[g, 1, 1] * n1 + pose[g, 1, 2] * n2
        b[_N2 + k] = pose[g, 2, 0] * n0 + pose[g, 2, 1] * n1 + pose[g, 2, 2] * n2
        b[_X + k], b[_Y + k], b[_Z + k] = (sx - cx) / f * depth, (sy - cy) / f * depth, depth
        b[_MR + k], b[_MG + k], b[_MB + k] = dim * look[g, 0], dim * look[g, 1], dim * look[g, 2]
        b[_EMIT + k], b[_SPEC + k], b[_EXP + k] = look[g, 3], look[g, 4], _HALF * look[g, 5]
        tex = texture[g]
        color = _WHITE, _WHITE, _WHITE
        if tex >= 0 and cube[g, 0] > _ZERO:
            d0, d1, d2 = b[_X + k] - pose[g, 0, 3], b[_Y + k] - pose[g, 1, 3], depth - pose[g, 2, 3]
            r0 = (pose[g, 0, 0] * d0 + pose[g, 1, 0] * d1 + pose[g, 2, 0] * d2) * cube[g, 0]
            r1 = (pose[g, 0, 1] * d0 + pose[g, 1, 1] * d1 + pose[g, 2, 1] * d2) * cube[g, 1]
            r2 = (pose[g, 0, 2] * d0 + pose[g, 1, 2] * d1 + pose[g, 2, 2] * d2) * cube[g, 2]
            color = _cube_color(texels, table, mips, tex, r0, r1, r2, depth / f * cube[g, 0])
        elif tex >= 0:
            u = b0 * corner[t, 0, 3] + b1 * corner[t, 1, 3] + b2 * corner[t, 2, 3]
            v = b0 * corner[t, 0, 4] + b1 * corner[t, 1, 4] + b2 * corner[t, 2, 4]
            x1, x2 = (
                (record[label, 1] - b1 * record[label, 6]) * depth,
                (record[label, 4] - b2 * record[label, 6]) * depth,
            )
            y1, y2 = (
                (record[label, 2] - b1 * record[label, 7]) * depth,
                (record[label, 5] - b2 * record[label, 7]) * depth,
            )
            u1, u2 = corner[t, 1, 3] - corner[t, 0, 3], corner[t, 2, 3] - corner[t, 0, 3]
            v1, v2 = corner[t, 1, 4] - corner[t, 0, 4], corner[t, 2, 4] - corner[t, 0, 4]
            along_u = max(abs(u1 * x1 + u2 * x2), abs(u1 * y1 + u2 * y2))
            along_v = max(abs(v1 * x1 + v2 * x2), abs(v1 * y1 + v2 * y2))
            color = _flat_color(texels, table, mips, tex, u, v, along_u, along_v)
        b[_TR + k], b[_TG + k], b[_TB + k] = color


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _power(base: F32, exponent: F32) -> F32:
    """base ** exponent for base in 0..1 and exponent >= 0, to about 1e-4; no calls, so that loops of it vectorise."""
    bits = np.float32(max(base, F32(1e-12))).view(np.int32)
    power = F32((bits >> 23) - 127)
    m = np.int32((bits & 0x7FFFFF) | 0x3F800000).view(np.float32) - _ONE
    log = power + m * (_L[0] + m * (_L[1] + m * (_L[2] + m * (_L[3] + m * (_L[4] + m * _L[5])))))
    at = max(exponent * log, F32(-60.0))
    whole = np.floor(at)
    f = at - whole
    mant = _ONE + f * (_E[0] + f * (_E[1] + f * (_E[2] + f * _E[3])))
    return np.int32((np.int32(whole) + 127) << 23).view(np.float32) * mant


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _prepare(n: int, b: Array) -> None:
    for k in range(n):
        n0, n1, n2 = b[_N0 + k], b[_N1 + k], b[_N2 + k]
        over = _ONE / math.sqrt(n0 * n0 + n1 * n1 + n2 * n2 + _TINY)
        b[_N0 + k], b[_N1 + k], b[_N2 + k] = n0 * over, n1 * over, n2 * over
        x, y, z = b[_X + k], b[_Y + k], b[_Z + k]
        over = -_ONE / math.sqrt(x * x + y * y + z * z)
        b[_V0 + k], b[_V1 + k], b[_V2 + k] = x * over, y * over, z * over
        b[_R + k] = b[_G + k] = b[_B + k] = b[_EMIT + k]
        b[_SR + k] = b[_SG + k] = b[_SB + k] = _ZERO


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _light(n: int, kind: int, light: int, lights: Array, color: Array, shape: Array, b: Array) -> None:
    """Add one light. shape: attenuation (3), cosine of the cone, exponent of the spot."""
    o0, o1, o2 = lights[light, 0], lights[light, 1], lights[light, 2]
    d0, d1, d2 = lights[light, 3], lights[light, 4], lights[light, 5]
    ar, ag, ab = color[light, 0], color[light, 1], color[light, 2]
    dr, dg, db = color[light, 3], color[light, 4], color[light, 5]
    sr, sg, sb = color[light, 6], color[light, 7], color[light, 8]
    k0, k1, k2, cone, exponent = shape[light, 0], shape[light, 1], shape[light, 2], shape[light, 3], shape[light, 4]
    spot = kind == LIGHT_SPOT
    for k in range(n):
        l0, l1, l2 = -d0, -d1, -d2
        strength = _ONE
        if spot:
            l0, l1, l2 = o0 - b[_X + k], o1 - b[_Y + k], o2 - b[_Z + k]
            square = l0 * l0 + l1 * l1 + l2 * l2 + _TINY
            over = _ONE / math.sqrt(square)
            distance = square * over
            l0, l1, l2 = l0 * over, l1 * over, l2 * over
            along = -(l0 * d0 + l1 * d1 + l2 * d2)
            strength = _power(along, exponent) / (k0 + distance * (k1 + distance * k2))
            strength = strength if along > max(cone, _ZERO) else _ZERO
        n0, n1, n2 = b[_N0 + k], b[_N1 + k], b[_N2 + k]
        cosine = n0 * l0 + n1 * l1 + n2 * l2
        facing = strength * max(cosine, _ZERO)
        b[_R + k] += strength * ar + facing * dr
        b[_G + k] += strength * ag + facing * dg
        b[_B + k] += strength * ab + facing * db
        h0, h1, h2 = l0 + b[_V0 + k], l1 + b[_V1 + k], l2 + b[_V2 + k]
        lobe = max(n0 * h0 + n1 * h1 + n2 * h2, _ZERO)
        lobe = lobe * lobe / (h0 * h0 + h1 * h1 + h2 * h2 + _TINY)
        shine = b[_SPEC + k] * strength * _power(lobe, b[_EXP + k])
        shine = shine if cosine > _ZERO else _ZERO
        b[_SR + k] += shine * sr
        b[_SG + k] += shine * sg
        b[_SB + k] += shine * sb


@njit(nogil=True, fastmath=True, error_model="numpy", forceinline=True)
def _finish(n: int, b: Array) -> None:
    """Clamp as OpenGL does before texturing, then the texture."""
    for k in range(n):
        b[_R + k] = min(b[_R + k] * b[_MR + k] + b[_SR + k], _ONE) * b[_TR + k]
        b[_G + k] = min(b[_G + k] * b[_MG + k] + b[_SG + k], _ONE) * b[_TG + k]
        b[_B + k] = min(b[_B + k] * b[_MB + k] + b[_SB + k], _ONE) * b[_TB + k]


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def shade(
    scene: Scene, pose: Array, lights: Array, lens: Array, offsets: Array, w: Array, ids: Array, record: Array,
    origin: Array, corner: tuple[int, int], dim: float, blend: bool, total: Array,
) -> None:  # fmt: skip
    """Add the colours of what `raster` drew to total, float32 [H, W, 3], 0..255.

    Args:
        corner: row and column of total where the first pixel of `ids` lies.
        dim: factor on the materials' colour, 1 or the mirror's reflectance.
        blend: the parts are transparent: mix by their alpha instead of adding.

    The other arguments are those of `raster`.
    """
    width, top, left = ids.shape[1], corner[0], corner[1]
    frag, where = np.empty((ids.size, 4), np.int32), np.empty((ids.size, 3), np.float32)
    b = np.empty(ROWS * BLOCK, np.float32)
    count = _fragments(w, ids, origin, offsets, frag, where)
    share = _ONE / F32(offsets.shape[0])
    for first in range(0, count, BLOCK):
        n = min(BLOCK, count - first)
        _gather(scene, n, first, frag, where, record, origin, pose, F32(lens[0]), F32(lens[1]), F32(lens[2]), F32(dim),
                b)  # fmt: skip
        _prepare(n, b)
        for light in range(scene.light_kind.shape[0]):
            _light(n, scene.light_kind[light], light, lights, scene.light_color, scene.light_shape, b)
        _finish(n, b)
        for k in range(n):
            pixel, part = frag[first + k, 1], share * F32(frag[first + k, 2])
            y, x = pixel // width + top, pixel % width + left
            keep = _ONE
            if blend:
                part *= scene.look[frag[first + k, 3], 6]
                keep = _ONE - part
            total[y, x, 0] = keep * total[y, x, 0] + part * b[_R + k]
            total[y, x, 1] = keep * total[y, x, 1] + part * b[_G + k]
            total[y, x, 2] = keep * total[y, x, 2] + part * b[_B + k]


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def background(scene: Scene, axes: Array, lens: Array, samples: int, ids: Array, total: Array) -> None:
    """Write the share of the sky, or of black, in each pixel to total."""
    f, cx, cy, sky = F32(lens[0]), F32(lens[1]), F32(lens[2]), scene.sky
    texels, table = scene.texels, scene.table
    for y in range(total.shape[0]):
        for x in range(total.shape[1]):
            count = 0
            for s in range(samples):
                count += ids[samples * y + s, x] < 0
            red, green, blue = _ZERO, _ZERO, _ZERO
            if count and sky >= 0:
                u, v = (F32(x) + _HALF - cx) / f, (F32(y) + _HALF - cy) / f
                d0 = F32(axes[0, 0]) * u + F32(axes[1, 0]) * v + F32(axes[2, 0])
                d1 = F32(axes[0, 1]) * u + F32(axes[1, 1]) * v + F32(axes[2, 1])
                d2 = F32(axes[0, 2]) * u + F32(axes[1, 2]) * v + F32(axes[2, 2])
                face, s, t, _ = _cube(d0, d2, -d1)
                start = table[sky, 0] + face * table[sky, 1] * table[sky, 1]
                red, green, blue = _face_texel(texels, start, table[sky, 1], s, t)
            share = F32(count) / F32(samples)
            total[y, x, 0], total[y, x, 1], total[y, x, 2] = share * red, share * green, share * blue


@njit(cache=True, nogil=True)
def store(total: Array, out: Array) -> None:
    """Round to out, uint8 [H, W, 3]."""
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            for k in range(3):
                out[y, x, k] = np.uint8(min(total[y, x, k], _WHITE) + _HALF)
