"""What each camera showed in training, small enough for a checkpoint's provenance, to tell swapped cameras."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence

import numpy as np

_CELLS = 16
_MARGIN, _TWINS = 0.2, 0.98
"""Correlations: how much more alike two views must be the other way round, and from where two are one camera's."""


def small_view(image: np.ndarray) -> str:
    """A picture's colours in 16 x 16 cells, as text: uint8 [H, W, 3], any size."""
    return base64.b64encode(_cells(image).tobytes()).decode()


def compare_views(live: Mapping[str, np.ndarray], stored: Sequence[str] | None) -> tuple[bool, str]:
    """Hold each camera against its view in training.

    Args:
        live: Each camera's picture, uint8 [H, W, 3], in the policy's order.
        stored: What `small_view` made of training's, in the same order; None where nothing is stored.

    Returns:
        Whether they may be used, and what was found: two that are one camera's, or that look swapped.
    """
    names, seen = list(live), [_cells(image) for image in live.values()]
    pairs = [(one, two) for two in range(len(names)) for one in range(two)]
    for one, two in pairs:
        if _alike(seen[one], seen[two]) > _TWINS:
            return False, f"{names[one]} and {names[two]} show the same: is one camera on both topics?"
    try:
        trained = [_read(text) for text in stored or ()]
    except (ValueError, TypeError, binascii.Error):
        return False, "the server's views of training are not understood: is it of another version?"
    if len(trained) != len(names):
        return (True, "CAUTION: no views of training are stored with the policy: compare by eye (--training-view)")
    for one, two in pairs:
        straight = _alike(seen[one], trained[one]) + _alike(seen[two], trained[two])
        crossed = _alike(seen[one], trained[two]) + _alike(seen[two], trained[one])
        if crossed > straight + _MARGIN:
            return False, f"{names[one]} and {names[two]} look swapped: each is more like the other's view in training"
    likeness = (f"{name} {_alike(view, known):.2f}" for name, view, known in zip(names, seen, trained, strict=True))
    return True, f"alike to training's views, of 1: {', '.join(likeness)}"


def _cells(image: np.ndarray) -> np.ndarray:
    """Mean colours, uint8 [16, 16, 3]; a smaller picture's pixels are repeated."""
    rows, columns = (np.linspace(0, size, _CELLS + 1).astype(int) for size in image.shape[:2])
    cells = np.empty((_CELLS, _CELLS, 3), np.uint8)
    for row in range(_CELLS):
        for column in range(_CELLS):
            part = image[rows[row] : max(rows[row + 1], rows[row] + 1), columns[column] :]
            cells[row, column] = part[:, : max(columns[column + 1] - columns[column], 1)].mean(axis=(0, 1))
    return cells


def _read(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint8).reshape(_CELLS, _CELLS, 3)


def _alike(one: np.ndarray, two: np.ndarray) -> float:
    """Correlation of the cells' colours; 0 where a view is even."""
    a, b = (view.astype(np.float64) - view.mean(axis=(0, 1)) for view in (one, two))
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float((a * b).sum()) / scale if scale > 0 else 0.0
