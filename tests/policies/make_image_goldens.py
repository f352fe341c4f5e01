"""Writes data/image_goldens.npz with the official libraries; run by hand, in an environment of its own:

    pip install tensorflow-cpu==2.21.0 pillow==13.0.0
    python tests/policies/make_image_goldens.py

Stored are the outputs of small pictures, and for pictures of the real size (256 to 224) the SHA-256 of the output.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).parent / "data" / "image_goldens.npz"
SMALL, LARGE = (16, 14), (256, 224)
"""Side of the frame and of the policy's picture."""


def picture(kind: int, size: int) -> Any:
    """uint8 [size, size, 3], integer arithmetic: 0 noise, 1 ramps and edges, 2 fine bright stripes on black."""
    if kind == 0:
        generator = np.random.Generator(np.random.Philox(key=[size, 7]))
        return generator.integers(0, 256, (size, size, 3), dtype=np.uint8)
    y, x = np.mgrid[0:size, 0:size]
    if kind == 1:
        planes = [(x * 255) // (size - 1), (y * y * 255) // (size - 1) ** 2, 255 * ((x // 5 + y // 7) % 2)]
    else:
        planes = [255 * ((x + y) % 3 == 0), 255 * (x % 2), (x * y * 37) % 256]
    return np.stack(planes, axis=-1).astype(np.uint8)


def main() -> None:
    """Make the file."""
    import tensorflow as tf  # pyright: ignore[reportMissingImports]
    from PIL import Image

    def jpeg(image: Any) -> Any:
        return tf.io.decode_image(tf.image.encode_jpeg(image), expand_animations=False, dtype=tf.uint8).numpy()

    def lanczos3(image: Any, size: int) -> Any:
        resized = tf.image.resize(image, (size, size), method="lanczos3", antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8).numpy()

    def crop(image: Any, size: int) -> Any:
        side = tf.reshape(tf.clip_by_value(tf.sqrt(0.9), 0, 1), (1,))
        margin = (1 - side) / 2
        box = tf.stack([margin, margin, margin + side, margin + side], axis=1)
        floats = tf.image.convert_image_dtype(tf.convert_to_tensor(image), tf.float32)[None]
        cropped = tf.clip_by_value(tf.image.crop_and_resize(floats, box, [0], (size, size))[0], 0, 1)
        return tf.image.convert_image_dtype(cropped, tf.uint8, saturate=True).numpy()

    stored: dict[str, Any] = {}
    for frame, size in (SMALL, LARGE):
        for kind in range(3):
            image = picture(kind, frame)
            upside_down = image[::-1]  # as the official simulator hands it out
            turned = upside_down[::-1, ::-1]
            results = {
                "jpeg": jpeg(image),
                "lanczos3": lanczos3(image, size),
                "crop": crop(image, frame),
                "openvla": crop(lanczos3(jpeg(turned), size), size),
                "openpi": np.asarray(Image.fromarray(turned).resize((size, size), Image.Resampling.BILINEAR)),
            }
            for name, result in results.items():
                key = f"{name}_{kind}_{frame}"
                digest = np.frombuffer(hashlib.sha256(np.ascontiguousarray(result).tobytes()).digest(), np.uint8)
                stored[key] = result if frame == SMALL[0] else digest
    np.savez_compressed(OUT, **stored)


if __name__ == "__main__":
    main()
