"""Textures as mip pyramids of packed texels, at most MAX_SIDE wide; what models share is made once."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import mujoco
import numpy as np

from embodied_rl.sim.render.scene import pixels
from embodied_rl.types import Array

MAX_SIDE = 512
"""Texels a side of the finest level: more than a frame of 224 pixels can show of one object."""


class Pyramid(NamedTuple):
    """Levels uint8 [h, w, 3], the finest first; faces: 6 for a cube, whose faces lie one below the other, else 1."""

    levels: list[Array]
    faces: int


class Textures:
    """Pyramids by the texture's content."""

    def __init__(self) -> None:
        self._known: dict[bytes, Pyramid] = {}

    def pyramid(self, model: mujoco.MjModel, texture: int) -> Pyramid:
        """The pyramid of a texture, decoded as its colour space says."""
        image = pixels(model, texture)
        flat = model.tex_type[texture] == mujoco.mjtTexture.mjTEXTURE_2D
        faces = 6 if not flat and image.shape[0] == 6 * image.shape[1] else 1
        key = hashlib.sha1(image.tobytes(), usedforsecurity=False).digest() + bytes([faces])
        if key not in self._known:
            self._known[key] = Pyramid(_levels(image, faces), faces)
        return self._known[key]


def _levels(image: Array, faces: int) -> list[Array]:
    while max(image.shape[0] // faces, image.shape[1]) > MAX_SIDE:
        image = _halve(image, faces)
    levels = [image]
    while min(image.shape[0] // faces, image.shape[1]) > 1:
        image = _halve(image, faces)
        levels.append(image)
    return levels


def _halve(image: Array, faces: int) -> Array:
    """Half of each side, rounded down, by linear filtering: means of 2 x 2 texels where a side is even."""
    side, width = image.shape[0] // faces, image.shape[1]
    cut = image.reshape(faces, side, width, 3)
    if side % 2 == 0 and width % 2 == 0:
        wide = cut.astype(np.uint16)
        mean = (wide[:, ::2, ::2] + wide[:, 1::2, ::2] + wide[:, ::2, 1::2] + wide[:, 1::2, 1::2] + 2) // 4
        return mean.astype(np.uint8).reshape(-1, width // 2, 3)
    rows, down = _between(side)
    columns, across = _between(width)
    tall = (1 - down)[:, None, None] * cut[:, rows] + down[:, None, None] * cut[:, np.minimum(rows + 1, side - 1)]
    last = np.minimum(columns + 1, width - 1)
    mixed = (1 - across)[:, None] * tall[:, :, columns] + across[:, None] * tall[:, :, last]
    return np.round(mixed).astype(np.uint8).reshape(-1, len(columns), 3)


def _between(size: int) -> tuple[Array, Array]:
    """Where the texels of the next level lie among `size` of this one: the one before, and how far from it."""
    fewer = max(size // 2, 1)
    at = (np.arange(fewer) + 0.5) * size / fewer - 0.5
    return np.floor(at).astype(np.int64), (at % 1).astype(np.float32)


def words(level: Array) -> Array:
    """Texels uint32 [h * w]: red in the lowest byte."""
    wide = level.astype(np.uint32)
    return (wide[..., 0] | wide[..., 1] << 8 | wide[..., 2] << 16).ravel()
