"""Prints the digests in test_images.py: what openpi's client makes of a picture, with Pillow 13.0.0.

Run where Pillow is installed: `python -m tests.real_robot.make_image_goldens`.
"""

from __future__ import annotations

import hashlib

import numpy as np
from PIL import Image

SHAPES = ((480, 640), (640, 480), (37, 21), (21, 64), (300, 300), (64, 64), (720, 1280))


def padded(image: np.ndarray, size: int) -> np.ndarray:
    """The whole picture in the middle of a black square, by Pillow's bilinear."""
    ratio = max(image.shape[1] / size, image.shape[0] / size)
    height, width = int(image.shape[0] / ratio), int(image.shape[1] / ratio)
    out = Image.new("RGB", (size, size), 0)
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    out.paste(resized, ((size - width) // 2, (size - height) // 2))
    return np.asarray(out)


if __name__ == "__main__":
    for height, width in SHAPES:
        picture = np.random.default_rng(height + 7 * width).integers(0, 256, (height, width, 3), np.uint8)
        print(f"    ({height}, {width}): {hashlib.sha256(padded(picture, 64).tobytes()).hexdigest()[:16]!r},")
