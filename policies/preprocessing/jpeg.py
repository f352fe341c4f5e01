"""What a JPEG does to a picture, without the file: the loss of TensorFlow's encode_jpeg and decode_image, bit for bit.

The published LIBERO data sets were stored as JPEG, so OpenVLA's evaluation sends each frame through one. Entropy coding
loses nothing and is left out. TensorFlow encodes with libjpeg's accurate integer DCT (quality 95, chroma halved in both
directions) but decodes with the fast one, which neither OpenCV nor Pillow offers: their round trip differs by up to 12
of 255. The integer arithmetic is libjpeg-turbo's: jccolor.c, jcsample.c, jfdctint.c and jcdctmgr.c on the way in,
jidctfst.c, jdsample.c and jdcolor.c on the way out; the transforms are those of Loeffler, Ligtenberg and Moschytz
(1989) and of Arai, Agui and Nakajima (1988). TensorFlow's choices: core/kernels/image/decode_image_op.cc (JDCT_IFAST)
and core/lib/jpeg/jpeg_mem.h.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from embodied_rl.types import Array

BLOCK = 16
"""Sides must be multiples of this: two 8 x 8 blocks, since chroma is halved."""
_LUMINANCE = (
    16,
    11,
    10,
    16,
    24,
    40,
    51,
    61,
    12,
    12,
    14,
    19,
    26,
    58,
    60,
    55,
    14,
    13,
    16,
    24,
    40,
    57,
    69,
    56,
    14,
    17,
    22,
    29,
    51,
    87,
    80,
    62,
    18,
    22,
    37,
    56,
    68,
    109,
    103,
    77,
    24,
    35,
    55,
    64,
    81,
    104,
    113,
    92,
    49,
    64,
    78,
    87,
    103,
    121,
    120,
    101,
    72,
    92,
    95,
    98,
    112,
    100,
    103,
    99,
)
_CHROMINANCE = (
    17,
    18,
    24,
    47,
    99,
    99,
    99,
    99,
    18,
    21,
    26,
    66,
    99,
    99,
    99,
    99,
    24,
    26,
    56,
    99,
    99,
    99,
    99,
    99,
    47,
    66,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
    99,
)
_QUALITY = 95


def _quantisers() -> Array:
    """int64 [2, 64]: luminance and chrominance tables (ITU-T T.81, annex K) at quality 95, libjpeg's scaling."""
    base = np.array([_LUMINANCE, _CHROMINANCE], np.int64)
    return np.clip((base * (200 - 2 * _QUALITY) + 50) // 100, 1, 255)


def _fast_multipliers(quantisers: Array) -> Array:
    """int64 [2, 64]: quantisers times the fast DCT's scale factors, with two fractional bits."""
    k = np.arange(8)
    scale = np.where(k == 0, 1.0, np.cos(k * np.pi / 16) * np.sqrt(2))
    factors = np.round(np.outer(scale, scale).ravel() * 2**14).astype(np.int64)
    return (quantisers * factors + (1 << 11)) >> 12


_MULTIPLIERS = _fast_multipliers(_quantisers())
_STEPS = 8 * _quantisers()
"""The forward transform's output is eight times too large."""


def jpeg_round_trip(image: Array) -> Array:
    """Encode and decode: uint8 [H, W, 3] RGB to the same, H and W multiples of 16 (else ValueError)."""
    height, width, channels = image.shape
    if image.dtype != np.uint8 or channels != 3 or height % BLOCK or width % BLOCK or not image.size:
        raise ValueError(
            f"a picture must be uint8 [H,W,3] with sides in multiples of {BLOCK}, got {image.dtype} {image.shape}"
        )
    out = np.empty_like(image, order="C")
    _round_trip(np.ascontiguousarray(image), _STEPS, _MULTIPLIERS, out)
    return out


@njit(nogil=True, cache=True)
def _to_ycc(image: Array, luma: Array, blue: Array, red: Array) -> None:
    """Full-range BT.601 in 16 fractional bits; chroma rounds down at a half."""
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            r, g, b = np.int32(image[y, x, 0]), np.int32(image[y, x, 1]), np.int32(image[y, x, 2])
            luma[y, x] = (19595 * r + 38470 * g + 7471 * b + 32768) >> 16
            blue[y, x] = (-11059 * r - 21709 * g + 32768 * b + 8421375) >> 16
            red[y, x] = (32768 * r - 27439 * g - 5329 * b + 8421375) >> 16


@njit(nogil=True, cache=True)
def _halve(full: Array, half: Array) -> None:
    """Means of 2 x 2; the rounding alternates from column to column."""
    for y in range(half.shape[0]):
        for x in range(half.shape[1]):
            total = full[2 * y, 2 * x] + full[2 * y, 2 * x + 1] + full[2 * y + 1, 2 * x] + full[2 * y + 1, 2 * x + 1]
            half[y, x] = (total + 1 + (x & 1)) >> 2


@njit(nogil=True, cache=True)
def _forward_line(v: Array, at: int, step: int, even: int, shift: int) -> None:
    """Eight numbers v[at], v[at + step], ... in place.

    even: left shift of terms 0 and 4 (0: a rounding right shift by 2); shift: rounding right shift of the others.
    """
    x0, x1, x2, x3 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step]
    x4, x5, x6, x7 = v[at + 4 * step], v[at + 5 * step], v[at + 6 * step], v[at + 7 * step]
    s0, s1, s2, s3 = x0 + x7, x1 + x6, x2 + x5, x3 + x4
    d0, d1, d2, d3 = x0 - x7, x1 - x6, x2 - x5, x3 - x4
    a, b, c, d = s0 + s3, s1 + s2, s1 - s2, s0 - s3
    half = 1 << (shift - 1)
    v[at], v[at + 4 * step] = ((a + b) << even, (a - b) << even) if even else ((a + b + 2) >> 2, (a - b + 2) >> 2)
    z = (c + d) * 4433
    v[at + 2 * step], v[at + 6 * step] = (z + d * 6270 + half) >> shift, (z - c * 15137 + half) >> shift
    z1, z2, z3, z4 = (d3 + d0) * -7373, (d2 + d1) * -20995, d3 + d1, d2 + d0
    z5 = (z3 + z4) * 9633 + half
    z3, z4 = z3 * -16069 + z5, z4 * -3196 + z5
    v[at + 7 * step] = (d3 * 2446 + z1 + z3) >> shift
    v[at + 5 * step] = (d2 * 16819 + z2 + z4) >> shift
    v[at + 3 * step] = (d1 * 25172 + z2 + z3) >> shift
    v[at + step] = (d0 * 12299 + z1 + z4) >> shift


@njit(nogil=True, cache=True)
def _inverse_line(v: Array, at: int, step: int) -> None:
    """Eight numbers v[at], v[at + step], ... in place; products are cut to eight fractional bits, never rounded."""
    x0, x1, x2, x3 = v[at], v[at + step], v[at + 2 * step], v[at + 3 * step]
    x4, x5, x6, x7 = v[at + 4 * step], v[at + 5 * step], v[at + 6 * step], v[at + 7 * step]
    a, b, c = x0 + x4, x0 - x4, x2 + x6
    d = (((x2 - x6) * 362) >> 8) - c
    e0, e3, e1, e2 = a + c, a - c, b + d, b - d
    z13, z10, z11, z12 = x5 + x3, x5 - x3, x1 + x7, x1 - x7
    o7 = z11 + z13
    z5 = ((z10 + z12) * 473) >> 8
    o6 = ((z10 * -669) >> 8) + z5 - o7
    o5 = (((z11 - z13) * 362) >> 8) - o6
    o4 = ((z12 * 277) >> 8) - z5 + o5
    v[at], v[at + 7 * step], v[at + step], v[at + 6 * step] = e0 + o7, e0 - o7, e1 + o6, e1 - o6
    v[at + 2 * step], v[at + 5 * step], v[at + 4 * step], v[at + 3 * step] = e2 + o5, e2 - o5, e3 + o4, e3 - o4


@njit(nogil=True, cache=True)
def _lose(plane: Array, steps: Array, multiplier: Array) -> None:
    """Transform, quantise, dequantise and transform back every 8 x 8 block of int32 [h, w], values 0..255."""
    block = np.empty(64, np.int64)
    for top in range(0, plane.shape[0], 8):
        for left in range(0, plane.shape[1], 8):
            for i in range(64):
                block[i] = plane[top + (i >> 3), left + (i & 7)] - 128
            for i in range(8):
                _forward_line(block, 8 * i, 1, 2, 11)
            for i in range(8):
                _forward_line(block, i, 8, 0, 15)
            for i in range(64):
                step = steps[i]
                level = (abs(block[i]) + (step >> 1)) // step
                block[i] = (level if block[i] >= 0 else -level) * multiplier[i]
            for i in range(8):
                _inverse_line(block, i, 8)
            for i in range(8):
                _inverse_line(block, 8 * i, 1)
            for i in range(64):
                plane[top + (i >> 3), left + (i & 7)] = min(max((block[i] >> 5) + 128, 0), 255)


@njit(nogil=True, cache=True)
def _upsample(half: Array, full: Array) -> None:
    """Triangle filter: 3/4 of the nearer and 1/4 of the further sample, in both directions."""
    rows, columns = half.shape
    line = np.empty(columns, np.int32)
    for y in range(2 * rows):
        near = y >> 1
        other = min(max(near + (1 if y & 1 else -1), 0), rows - 1)
        for x in range(columns):
            line[x] = 3 * half[near, x] + half[other, x]
        for x in range(columns):
            full[y, 2 * x] = (3 * line[x] + line[max(x - 1, 0)] + 8) >> 4
            full[y, 2 * x + 1] = (3 * line[x] + line[min(x + 1, columns - 1)] + 7) >> 4


@njit(nogil=True, cache=True)
def _to_rgb(luma: Array, blue: Array, red: Array, out: Array) -> None:
    for y in range(out.shape[0]):
        for x in range(out.shape[1]):
            base, b, r = luma[y, x], blue[y, x] - 128, red[y, x] - 128
            out[y, x, 0] = min(max(base + ((91881 * r + 32768) >> 16), 0), 255)
            out[y, x, 1] = min(max(base + ((-22554 * b - 46802 * r + 32768) >> 16), 0), 255)
            out[y, x, 2] = min(max(base + ((116130 * b + 32768) >> 16), 0), 255)


@njit(nogil=True, cache=True)
def _round_trip(image: Array, steps: Array, multipliers: Array, out: Array) -> None:
    height, width = image.shape[:2]
    planes = np.empty((3, height, width), np.int32)
    _to_ycc(image, planes[0], planes[1], planes[2])
    _lose(planes[0], steps[0], multipliers[0])
    half = np.empty((height // 2, width // 2), np.int32)
    for channel in (1, 2):
        _halve(planes[channel], half)
        _lose(half, steps[1], multipliers[1])
        _upsample(half, planes[channel])
    _to_rgb(planes[0], planes[1], planes[2], out)
