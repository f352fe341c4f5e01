"""Images of any shape as the square ones that a policy looks at."""

from __future__ import annotations

from typing import Literal

from embodied_rl.types import Array

ImageFit = Literal["stretch", "pad", "pad_top_left"]
"""stretch: to a square. pad: the whole image in the middle of a black square. pad_top_left: black above and left of
it."""


def fit_image(image: Array, size: int, how: ImageFit) -> Array:
    """uint8 [H, W, 3] -> [size, size, 3], with Pillow's antialiased bilinear; one of that size is as it was."""
    from embodied_rl.policies.preprocessing.resize import bilinear_pillow, padded_square  # compiled, when first needed

    if how == "stretch":
        return bilinear_pillow(image, size)
    return padded_square(image, size, centred=how == "pad")
