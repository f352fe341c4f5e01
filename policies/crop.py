"""The centre crop on the device of the policy, for a batch of images; images_resize.py has TensorFlow's bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def center_crop(images: Tensor, area: float) -> Tensor:
    """Cut the middle `area` (share, in (0, 1]) out of uint8 [B,H,W,3] and enlarge it to the same size.

    Bilinear, its corner samples on the crop's corners, as TensorFlow's `crop_and_resize`, and back to uint8 as
    TensorFlow's `convert_image_dtype` does (v * 255.5 / 255, rounded down): OpenVLA's evaluation does both.
    """
    if area == 1.0:
        return images
    height, width = images.shape[1:3]
    side = area**0.5
    y, x = (torch.linspace(-side, side, count, device=images.device) for count in (height, width))
    grid = torch.stack(torch.meshgrid(y, x, indexing="ij")[::-1], dim=-1).expand(len(images), -1, -1, -1)
    planes = images.permute(0, 3, 1, 2).float()
    cut = F.grid_sample(planes, grid, mode="bilinear", padding_mode="border", align_corners=True)
    return (cut * (255.5 / 255.0)).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
