"""LIBERO-plus' sensor noise: five kinds of degraded pictures, ten strengths each.

The kinds are those of ImageNet-C (Hendrycks and Dietterich 2019, "Benchmarking neural network robustness to common
corruptions and perturbations"), with LIBERO-plus' own strengths. The official code adds them to `agentview` as it comes
from the simulator, upside down and 256 pixels wide.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np
from numba import njit
from scipy import ndimage

from embodied_rl.types import Array

SIZE = 256
"""Side of the pictures that the kinds are defined on, in pixels."""
Kind = Literal["motion blur", "Gaussian blur", "zoom blur", "fog", "glass blur"]
KINDS: tuple[Kind, ...] = ("motion blur", "Gaussian blur", "zoom blur", "fog", "glass blur")
"""Numbers 1 to 10 are motion blur, 11 to 20 Gaussian blur, and so on; the last digit is the strength."""
STRENGTHS = 10

_MOTION = ((5, 2), (8, 3), (10, 4), (12, 5), (15, 6), (18, 8), (20, 10), (25, 12), (30, 15), (35, 20))
"""Radius and deviation of the smear, pixels."""
_MOTION_DEGREES = 45.0
_QUANTA = 257
"""65535 / 255."""
_ZOOM = (
    *((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    *((1.36, 0.01), (1.41, 0.01), (1.46, 0.02), (1.51, 0.02), (1.56, 0.03)),
)
"""Where the factors end, and how far they are apart; they begin at 1."""
_FOG = (
    *((0.5, 3.0), (1.0, 2.8), (1.5, 2.5), (2.0, 2.2), (2.5, 2.0)),
    *((3.0, 1.8), (3.5, 1.6), (4.0, 1.5), (4.5, 1.4), (5.0, 1.3)),
)
"""Amount, and how fast the clouds' roughness falls from a scale to the next finer one."""
_ROUGHNESS = 100.0
_GLASS = (
    *((0.5, 1, 3), (0.7, 1, 3), (0.9, 2, 3), (1.0, 2, 2), (1.1, 3, 2)),
    *((1.3, 3, 2), (1.5, 4, 2), (1.8, 4, 2), (2.2, 5, 1), (2.5, 5, 1)),
)
"""Deviation of the blur before and after, how far a pixel is taken from at most (pixels), and how often."""
_GLASS_SIDE = 224
"""The official loops end here whatever the picture's size: the last rows and columns stay in place."""


class Draws(Protocol):
    """Where random numbers come from; NumPy's Generator is one."""

    def uniform(self, low: float, high: float, size: tuple[int, ...] | None = None) -> Array: ...

    def integers(self, low: int, high: int, size: tuple[int, ...]) -> Array: ...


def describe(number: int) -> tuple[Kind, int]:
    """Kind and strength (1 to 10) of a noise number; ValueError unless it is from 1 to 50."""
    if not 1 <= number <= len(KINDS) * STRENGTHS:
        raise ValueError(f"sensor noise has numbers 1 to {len(KINDS) * STRENGTHS}, not {number}")
    kind, strength = divmod(number - 1, STRENGTHS)
    return KINDS[kind], strength + 1


def add_noise(picture: Array, number: int, draws: Draws) -> Array:
    """A picture with a sensor noise.

    Args:
        picture: uint8 [256, 256, 3], the official way up: row 0 at the bottom of what is seen.
        number: of the noise, 1 to 50.
        draws: random numbers; other ones for every picture.

    Returns:
        uint8 [256, 256, 3], a new array.
    """
    if picture.shape != (SIZE, SIZE, 3):
        raise ValueError(f"sensor noise is defined on pictures of {SIZE} x {SIZE} pixels, not {picture.shape}")
    kind, strength = describe(number)
    row = strength - 1
    if kind == "motion blur":
        return _smeared(picture, *_MOTION[row], float(draws.uniform(-_MOTION_DEGREES, _MOTION_DEGREES)))
    if kind == "Gaussian blur":
        return _as_bytes(_blurred(picture / 255.0, strength))
    if kind == "zoom blur":
        return _as_bytes(_zoomed(picture, *_ZOOM[row]))
    if kind == "fog":
        return _as_bytes(_fogged(picture, *_FOG[row], draws))
    return _as_bytes(_shattered(picture, *_GLASS[row], draws))


def _as_bytes(picture: Array) -> Array:
    """From [0, 1] to bytes, cut off and not rounded, as the official code does."""
    return (np.clip(picture, 0, 1) * 255).astype(np.uint8)


def _smeared(picture: Array, radius: int, deviation: float, degrees: float) -> Array:
    """One-sided Gaussian weights along a line, the picture's edges continued: ImageMagick's motion blur.

    It computes in 16 bits, rounds there, and cuts off when it writes bytes.
    """
    taps = 2 * radius + 1
    weights = np.exp(-0.5 * (np.arange(taps) / deviation) ** 2)
    weights /= weights.sum()
    down, right = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    padded = np.pad(picture.astype(np.float64), ((taps, taps), (taps, taps), (0, 0)), "edge")
    total = np.zeros(picture.shape)
    for tap, weight in enumerate(weights):
        y, x = (taps + math.ceil(tap * part - 0.5) for part in (down, right))
        total += weight * padded[y : y + SIZE, x : x + SIZE]
    return (np.floor(total * _QUANTA + 0.5) // _QUANTA).astype(np.uint8)


def _blurred(picture: Array, deviation: float) -> Array:
    return np.asarray(ndimage.gaussian_filter(picture, (deviation, deviation, 0), mode="nearest"))


def _zoomed(picture: Array, end: float, apart: float) -> Array:
    """The mean of the picture and of its enlarged middles."""
    sharp = (picture / 255.0).astype(np.float32)
    total, factors = np.zeros_like(sharp), np.arange(1, end, apart)
    for factor in factors:
        total += _enlarged_middle(sharp, factor)
    return (sharp + total) / (len(factors) + 1)


def _enlarged_middle(picture: Array, factor: float) -> Array:
    side = math.ceil(SIZE / factor)
    first = (SIZE - side) // 2
    middle = picture[first : first + side, first : first + side]
    large = np.asarray(ndimage.zoom(middle, (factor, factor, 1), order=1))
    spare = (len(large) - SIZE) // 2
    return large[spare : spare + SIZE, spare : spare + SIZE]


def _fogged(picture: Array, amount: float, decay: float, draws: Draws) -> Array:
    clear = picture / 255.0
    brightest = clear.max()
    foggy = clear + amount * _clouds(decay, draws)[..., None]
    return foggy * brightest / (brightest + amount)


def _clouds(decay: float, draws: Draws) -> Array:
    """Plasma on a torus by midpoint displacement (diamond-square), float64 [256, 256] from 0 to 1."""
    clouds, step, roughness = np.empty((SIZE, SIZE)), SIZE, _ROUGHNESS
    clouds[0, 0] = 0

    def displaced(sums: Array) -> Array:
        return sums / 4 + roughness * draws.uniform(-roughness, roughness, sums.shape)

    while step >= 2:
        half = step // 2
        corners = clouds[::step, ::step]
        below = corners + np.roll(corners, -1, axis=0)
        clouds[half::step, half::step] = displaced(below + np.roll(below, -1, axis=1))
        middles = clouds[half::step, half::step]
        sides = middles + np.roll(middles, 1, axis=0) + (corners + np.roll(corners, -1, axis=1))
        clouds[::step, half::step] = displaced(sides)
        sides = middles + np.roll(middles, 1, axis=1) + (corners + np.roll(corners, -1, axis=0))
        clouds[half::step, ::step] = displaced(sides)
        step, roughness = half, roughness / decay
    clouds -= clouds.min()
    return clouds / clouds.max()


def _shattered(picture: Array, deviation: float, reach: int, times: int, draws: Draws) -> Array:
    """Blurred, pixels taken from nearby, blurred again."""
    broken = (_blurred(picture / 255.0, deviation) * 255).astype(np.uint8)
    side = _GLASS_SIDE - 2 * reach
    for _ in range(times):
        _take_nearby(broken, _GLASS_SIDE - reach, draws.integers(-reach, reach, (side, side, 2)))
    return _blurred(broken / 255.0, deviation)


@njit(cache=True, nogil=True)
def _take_nearby(picture: Array, last: int, offsets: Array) -> None:
    """Each pixel becomes a copy of one nearby, in place, from the pixel (last, last) back; offsets: x, then y.

    The official code means to swap the two, but NumPy's views make a copy of it.
    """
    for row in range(offsets.shape[0]):
        for column in range(offsets.shape[1]):
            y, x = last - row, last - column
            picture[y, x] = picture[y + offsets[row, column, 1], x + offsets[row, column, 0]]
