"""Pictures of any size, as the policy was shown them in training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from embodied_rl.policies.preprocessing.images import image_pipeline
from embodied_rl.policies.preprocessing.jpeg import jpeg_round_trip
from embodied_rl.policies.preprocessing.resize import bilinear_pillow_padded
from embodied_rl.types import Array

_RECORDED = 256
"""Side in pixels of the pictures in LIBERO's data sets, which went through JPEG."""


@dataclass(frozen=True, kw_only=True)
class ImageFitter:
    """Brings one picture, uint8 [H, W, 3], to the policy's side; one that has it is taken as it is.

    A picture that is not square gets black bars, as openpi's clients make them.

    Args:
        size: The policy's side in pixels.
        pipeline: How the policy's pictures were resized in training, by its name in `preprocessing.images`. Its mirror
            image and its crop are left out: clients send pictures in the policy's orientation, and the crop is the
            checkpoint's.
        mirror: Swap left and right first.

    Example:
        >>> ImageFitter(size=64)(np.zeros((480, 640, 3), np.uint8)).shape
        (64, 64, 3)
    """

    size: int
    pipeline: str = "as_rendered"
    mirror: bool = False

    def __call__(self, image: Array) -> Array:
        """uint8 [S, S, 3]."""
        if self.mirror:
            image = image[:, ::-1]
        if image.shape[:2] == (self.size, self.size):
            return np.ascontiguousarray(image)
        steps = image_pipeline(self.pipeline)
        if not steps.jpeg and (steps.resize is None or image.shape[0] != image.shape[1]):
            return bilinear_pillow_padded(image, self.size)
        if steps.jpeg:
            if image.shape[:2] != (_RECORDED, _RECORDED):
                image = bilinear_pillow_padded(image, _RECORDED)
            image = jpeg_round_trip(np.ascontiguousarray(image))
        resize = steps.resize or bilinear_pillow_padded
        return image if image.shape[0] == self.size else resize(image, self.size)
