"""Resampling as the published pipelines did it, without their libraries: TensorFlow's, Pillow's and torchvision's.

Each function documents how exactly it agrees; tests/policies/test_images.py holds it to that.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, vectorize

from embodied_rl.types import Array

_FIXED_POINT = 22
"""Fractional bits of Pillow's weights for pictures of 8 bits."""
_KEPT = 64
"""Pairs of sizes whose weights are kept: a client may send a picture of any size."""


class Spans(NamedTuple):
    """Which source samples make an output sample. start, count: int64 [n]; weight: [n, longest]."""

    start: Array
    count: Array
    weight: Array


def lanczos3_tf(image: Array, size: int) -> Array:
    """tf.image.resize(image, (size, size), "lanczos3", antialias=True), rounded and clipped: uint8 [H, W, 3] to square.

    Source: tensorflow/core/kernels/image/scale_and_translate_op.cc and sampling_kernels.h (float32 throughout, rows
    before columns). The uint8 result is TensorFlow's bit for bit (TensorFlow 2.21, x86-64).
    """
    rows, columns = _lanczos3_spans(image.shape[0], size), _lanczos3_spans(image.shape[1], size)
    out = np.empty((size, size, 3), np.uint8)
    _resample_float(np.ascontiguousarray(image), rows, columns, out)
    return out


def bilinear_pillow(image: Array, size: int) -> Array:
    """Image.resize((size, size), BILINEAR) of Pillow, bit for bit: uint8 [H, W, 3] to square; antialiased.

    Source: Pillow's src/libImaging/Resample.c (fixed-point weights, columns before rows, 8 bits in between).
    """
    return _bilinear_pillow(image, size, size)


def bilinear_pillow_padded(image: Array, size: int) -> Array:
    """The whole picture in the middle of a black square: uint8 [H, W, 3] to square; of a square, `bilinear_pillow`.

    As openpi's resize_with_pad for one picture, bit for bit: the longer side fills the square.
    Source: packages/openpi-client/src/openpi_client/image_tools.py.
    """
    return padded_square(image, size, centred=True)


def padded_square(image: Array, size: int, *, centred: bool) -> Array:
    """The whole picture in a black square, in the middle or at the bottom right: uint8 [H, W, 3] to square."""
    ratio = max(image.shape[0] / size, image.shape[1] / size)
    height, width = (max(1, int(side / ratio)) for side in image.shape[:2])
    out = np.zeros((size, size, 3), np.uint8)
    top, left = size - height, size - width
    if centred:
        top, left = top // 2, left // 2
    out[top : top + height, left : left + width] = _bilinear_pillow(image, height, width)
    return out


def bicubic_torchvision(image: Array, size: int) -> Array:
    """torchvision.transforms.functional.resize of a uint8 tensor, bicubic with antialias: [H, W, 3] to square.

    torchvision computes it in float32 with torch's own operator, then rounds and clips: the same operator runs here.
    Source: torchvision/transforms/_functional_tensor.py.
    """
    planes = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None].float()
    resized = torch.nn.functional.interpolate(planes, (size, size), mode="bicubic", align_corners=False, antialias=True)
    return resized.clamp(0, 255).round()[0].to(torch.uint8).permute(1, 2, 0).contiguous().numpy()


def center_crop_tf(image: Array, area: float) -> Array:
    """Crop the middle `area` of a square picture and scale it back: uint8 [S, S, 3] to the same, bit for bit.

    As OpenVLA's evaluation does with tf.image.convert_image_dtype and tf.image.crop_and_resize (experiments/robot/
    openvla_utils.py): each side is sqrt(area) of the picture's. Source: tensorflow/core/kernels/image/
    crop_and_resize_op.cc (bilinear between pixel centres, float32).
    """
    size = image.shape[0]
    out = np.empty((size, size, 3), np.uint8)
    _crop(np.ascontiguousarray(image), np.sqrt(np.float32(area)), out)
    return out


@lru_cache(_KEPT)
def _lanczos3_spans(source: int, target: int) -> Spans:
    one = np.float32(1)
    inverse = one / (np.float32(target) / np.float32(source))
    stretch = max(inverse, one)
    centre = ((np.arange(target, dtype=np.float32) + np.float32(0.5)) * inverse).astype(np.float32)
    reach = np.float32(3) * stretch
    start = np.clip(np.ceil(centre - reach - np.float32(0.5)), 0, source - 1).astype(np.int64)
    stop = np.clip(np.floor(centre + reach - np.float32(0.5)), 0, source - 1).astype(np.int64) + 1
    count = stop - start
    weight = np.zeros((target, int(count.max())), np.float32)
    for x in range(target):
        at = np.arange(start[x], stop[x]).astype(np.float32) + np.float32(0.5) - centre[x]
        values = _lanczos3(np.abs(at * (one / stretch)))
        total = np.float32(0)
        for value in values:  # in order, as rounding depends on it
            total += value
        weight[x, : count[x]] = values * (one / total)
    return Spans(start, count, weight)


def _lanczos3(x: Array) -> Array:
    """Radius 3 times sin(pi x) sin(pi x / 3) / (pi x)^2, float32; 1 within 0.001 of the centre, 0 beyond the radius."""
    pi, radius = np.float32(np.pi), np.float32(3)
    with np.errstate(divide="ignore", invalid="ignore"):
        bell = radius * _sine(pi * x) * _sine(pi * x / radius) / (pi * pi * x * x)
    return np.where(x > radius, np.float32(0), np.where(x <= np.float32(1e-3), np.float32(1), bell)).astype(np.float32)


@vectorize(["float32(float32)"], cache=True)
def _sine(x: Any) -> Any:
    """The C library's float32 sine, as TensorFlow's; numpy's own is an ulp off here and there."""
    return math.sin(x)


@lru_cache(_KEPT)
def _triangle_spans(source: int, target: int) -> Spans:
    scale = source / target
    stretch = max(scale, 1.0)
    centre = (np.arange(target) + 0.5) * scale
    start = np.maximum((centre - stretch + 0.5).astype(np.int64), 0)
    stop = np.minimum((centre + stretch + 0.5).astype(np.int64), source)
    count = stop - start
    weight = np.zeros((target, int(count.max())), np.int64)
    for x in range(target):
        at = (np.arange(start[x], stop[x]) - centre[x] + 0.5) * (1.0 / stretch)
        values = np.maximum(1.0 - np.abs(at), 0.0)
        total = 0.0
        for value in values:
            total += value
        weight[x, : count[x]] = (0.5 + values / total * (1 << _FIXED_POINT)).astype(np.int64)
    return Spans(start, count, weight)


@njit(nogil=True, cache=True)
def _byte(value: np.float32) -> np.uint8:
    return np.uint8(min(max(np.rint(value), np.float32(0)), np.float32(255)))


@njit(nogil=True, cache=True)
def _resample_float(image: Array, rows: Spans, columns: Spans, out: Array) -> None:
    width = image.shape[1]
    line = np.empty((width, 3), np.float32)
    for y in range(out.shape[0]):
        line[:] = np.float32(0)
        for k in range(rows.count[y]):
            w = rows.weight[y, k]
            source = image[rows.start[y] + k]
            for x in range(width):
                for c in range(3):
                    line[x, c] += w * np.float32(source[x, c])
        for x in range(out.shape[1]):
            red = green = blue = np.float32(0)
            for k in range(columns.count[x]):
                w, at = columns.weight[x, k], columns.start[x] + k
                red += w * line[at, 0]
                green += w * line[at, 1]
                blue += w * line[at, 2]
            out[y, x, 0], out[y, x, 1], out[y, x, 2] = _byte(red), _byte(green), _byte(blue)


def _bilinear_pillow(image: Array, height: int, width: int) -> Array:
    out = image
    if image.shape[1] != width:
        out = _resample_fixed(out.transpose(1, 0, 2), _triangle_spans(image.shape[1], width)).transpose(1, 0, 2)
    if image.shape[0] != height:
        out = _resample_fixed(out, _triangle_spans(image.shape[0], height))
    return np.ascontiguousarray(out)


def _resample_fixed(image: Array, spans: Spans) -> Array:
    """Resample the first axis of uint8 [h, w, 3]."""
    out = np.empty((len(spans.start), *image.shape[1:]), np.uint8)
    _fixed(np.ascontiguousarray(image), spans, out)
    return out


@njit(nogil=True, cache=True)
def _fixed(image: Array, spans: Spans, out: Array) -> None:
    line = np.empty(image.shape[1:], np.int64)
    for y in range(out.shape[0]):
        line[:] = 1 << (_FIXED_POINT - 1)
        for k in range(spans.count[y]):
            w = spans.weight[y, k]
            source = image[spans.start[y] + k]
            for x in range(image.shape[1]):
                for c in range(3):
                    line[x, c] += w * source[x, c]
        for x in range(image.shape[1]):
            for c in range(3):
                out[y, x, c] = min(max(line[x, c] >> _FIXED_POINT, 0), 255)


@njit(nogil=True, cache=True)
def _crop(image: Array, side: np.float32, out: Array) -> None:
    """side: of the crop, float32, as a share of the picture's."""
    size = image.shape[0]
    first = (np.float32(1) - side) / np.float32(2)
    last = np.float32(size - 1)
    step = ((first + side) - first) * last / last
    unit = np.float32(1) / np.float32(255)
    for y in range(size):
        at_y = first * last + np.float32(y) * step
        top, low = int(np.floor(at_y)), int(np.ceil(at_y))
        down = at_y - np.float32(top)
        for x in range(size):
            at_x = first * last + np.float32(x) * step
            left, right = int(np.floor(at_x)), int(np.ceil(at_x))
            across = at_x - np.float32(left)
            for c in range(3):
                a, b = np.float32(image[top, left, c]) * unit, np.float32(image[top, right, c]) * unit
                d, e = np.float32(image[low, left, c]) * unit, np.float32(image[low, right, c]) * unit
                upper, lower = a + (b - a) * across, d + (e - d) * across
                value = min(max(upper + (lower - upper) * down, np.float32(0)), np.float32(1))
                out[y, x, c] = np.uint8(value * np.float32(255.5))
