"""Still pictures side by side, as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from embodied_rl.types import Array

HEIGHT = 256
_GAP = 4


def side_by_side(rows: Sequence[Sequence[Array]]) -> Array:
    """One picture of several, a line for each row of them.

    Args:
        rows: pictures uint8 [H, W, 3] of any size; each is scaled to a height of 256 pixels, without smoothing.

    Returns:
        uint8 [H, W, 3], white between them and where a line is shorter.
    """
    lines = []
    for row in rows:
        scaled = [
            cv2.resize(
                np.ascontiguousarray(picture),
                (max(1, round(picture.shape[1] * HEIGHT / picture.shape[0])), HEIGHT),
                interpolation=cv2.INTER_NEAREST,
            )
            for picture in row
        ]
        lines.append(np.concatenate([np.pad(part, _EDGE, constant_values=255) for part in scaled], axis=1))
    width = max(line.shape[1] for line in lines)
    return np.concatenate(
        [np.pad(line, ((0, 0), (0, width - line.shape[1]), (0, 0)), constant_values=255) for line in lines]
    )


_EDGE = ((_GAP, _GAP), (_GAP, _GAP), (0, 0))


def write_png(path: Path, picture: Array) -> None:
    """Write uint8 [H, W, 3], RGB, whole or not at all."""
    done, data = cv2.imencode(".png", picture[:, :, ::-1])
    if not done:
        raise RuntimeError(f"{path} could not be encoded")
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data.tobytes())
    partial.replace(path)
