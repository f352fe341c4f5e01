"""What LIBERO-plus' official code gives, as make_plus_golden.py recorded it, and the picture that it gave it for."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.types import Array

_HERE = Path(__file__).parent
NAMES, NOISE, POSES = (_HERE / name for name in ("plus_names.json.gz", "plus_noise.npz", "plus_poses.json"))
NUMBERS = (3, 7, 10, 14, 20, 21, 25, 30, 31, 38, 40, 42, 46, 50)
"""Noises that are recorded."""
EVERY = 8
"""Of the recorded pictures' rows and columns, so many apart."""


class LegacyDraws:
    """The draws of the official code, which uses NumPy's global generator."""

    def __init__(self, seed: int) -> None:
        self._state = np.random.RandomState(seed)

    def uniform(self, low: float, high: float, size: tuple[int, ...] | None = None) -> Any:
        return self._state.uniform(low, high, size)

    def integers(self, low: int, high: int, size: tuple[int, ...]) -> Array:
        return self._state.randint(low, high, size)


def picture() -> Array:
    """uint8 [256, 256, 3]: gradients, edges and fine stripes."""
    y, x = np.mgrid[:256, :256]
    made = np.stack([x, y, (x + 2 * y) // 3], axis=-1)
    made[60:130, 40:190] = (200, 30, 10)
    made[150:220, 100:150:4] = 255
    made[20:50, 200:240] = 0
    return made.astype(np.uint8)


def names() -> dict[str, list[str]]:
    """The official task map's names by suite."""
    return json.loads(gzip.decompress(NAMES.read_bytes()))
