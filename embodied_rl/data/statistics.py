"""Exact statistics of a dataset, as LeRobot's stats.json holds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from embodied_rl.types import Array

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


def array_statistics(values: Array) -> dict[str, list[float]]:
    """Statistics of `values` [n, d] over n, each a list of d numbers; `count` is [n], `std` the population's."""
    data = np.asarray(values, dtype=np.float64)
    out = {
        "min": data.min(0).tolist(),
        "max": data.max(0).tolist(),
        "mean": data.mean(0).tolist(),
        "std": data.std(0).tolist(),
        "count": [len(data)],
    }
    quantiles = np.quantile(data, list(QUANTILES.values()), axis=0)
    return out | {name: row.tolist() for name, row in zip(QUANTILES, quantiles, strict=True)}


def histogram(images: Array) -> Array:
    """int64 [3, 256]: how often each level occurs in each channel of `images`, uint8 [T, H, W, 3]."""
    return np.stack([np.bincount(images[..., channel].ravel(), minlength=256) for channel in range(3)])


def image_statistics(counts: Array, frames: int) -> dict[str, Any]:
    """Statistics of pixels in [0, 1] from their histogram [3, 256]; each is [3][1][1], `count` is the number of frames.

    Histograms add up, so those of the whole dataset are as exact as those of an episode. A quantile is the smallest
    level whose cumulative share reaches it.
    """
    levels = np.arange(256) / 255.0
    total = counts.sum(1)
    share = np.cumsum(counts, axis=1) / total[:, None]
    mean = counts @ levels / total
    variance = np.maximum(counts @ levels**2 / total - mean**2, 0.0)
    present = counts > 0
    stats = {
        "min": levels[present.argmax(1)],
        "max": levels[255 - present[:, ::-1].argmax(1)],
        "mean": mean,
        "std": np.sqrt(variance),
    } | {name: levels[(share >= q - 1e-12).argmax(1)] for name, q in QUANTILES.items()}
    return {name: value.reshape(3, 1, 1).tolist() for name, value in stats.items()} | {"count": [frames]}
