"""The centre crop on the device of the policy, for a batch of images, equal to TensorFlow's bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_UNIT = float(np.float32(1) / np.float32(255))


def center_crop(images: Tensor, area: float) -> Tensor:
    """Cut the middle `area` (share, in (0, 1]) out of uint8 [B,H,W,3] and enlarge it to the same size.

    The same float32 operations in the same order as `resize.center_crop_tf`: bilinear
    between pixel centres, as TensorFlow's `crop_and_resize`, and back to uint8 as its `convert_image_dtype` does.
    """
    if area == 1.0:
        return images
    top, low, down = _samples(images.shape[1], area, images.device)
    left, right, across = _samples(images.shape[2], area, images.device)
    planes, across, down = images.float() * _UNIT, across[:, None], down[:, None, None]
    edges = []
    for rows in (planes[:, top], planes[:, low]):
        first = rows[:, :, left]
        edges.append(first + (rows[:, :, right] - first) * across)
    upper, lower = edges
    return ((upper + (lower - upper) * down).clamp(0.0, 1.0) * 255.5).to(torch.uint8)


def _samples(size: int, area: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `size` samples along an axis the pixels before and after it, int64, and how far it is past one."""
    one, side, last = np.float32(1), np.sqrt(np.float32(area)), np.float32(size - 1)
    first = (one - side) / np.float32(2)
    step = ((first + side) - first) * last / last
    at = first * last + np.arange(size, dtype=np.float32) * step
    before = np.floor(at)
    parts = before.astype(np.int64), np.ceil(at).astype(np.int64), at - before
    before_at, after_at, past = (torch.from_numpy(part).to(device) for part in parts)
    return before_at, after_at, past
