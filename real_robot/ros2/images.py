"""From sensor_msgs/Image and CompressedImage to uint8 [H, W, 3] RGB."""

from __future__ import annotations

from typing import Any

import numpy as np

_RGB, _BGR = slice(0, 3), slice(2, None, -1)
_CHANNELS = {"rgb8": (3, _RGB), "bgr8": (3, _BGR), "rgba8": (4, _RGB), "bgra8": (4, _BGR)}
MOST_PIXELS = 4096 * 4096


class ImageError(ValueError):
    """A message that is no picture; the text says why."""


def of_raw(message: Any) -> np.ndarray:
    """The picture of a sensor_msgs/Image.

    Args:
        message: Of 8 bits a channel.

    Raises:
        ImageError: Another encoding, or fewer bytes than the header says.
    """
    encoding, height, width, step = message.encoding, message.height, message.width, message.step
    if encoding == "mono8":
        channels, order = 1, _RGB
    elif encoding in _CHANNELS:
        channels, order = _CHANNELS[encoding]
    else:
        raise ImageError(f"encoding '{encoding}': publish {', '.join(_CHANNELS)} or mono8")
    data = np.frombuffer(message.data, np.uint8)
    if not 0 < height * width <= MOST_PIXELS or step < width * channels or len(data) < height * step:
        raise ImageError(f"{width} x {height} of {encoding} do not fit {len(data)} bytes in rows of {step}")
    rows = data[: height * step].reshape(height, step)[:, : width * channels]
    pixels = rows.reshape(height, width, channels)
    if channels == 1:
        pixels = np.broadcast_to(pixels, (height, width, 3))
    return pixels[:, :, order].copy()


def of_compressed(message: Any) -> np.ndarray:
    """The picture of a sensor_msgs/CompressedImage (JPEG or PNG).

    Raises:
        ImageError: It cannot be decoded, or is too large.
    """
    import cv2

    data = bytes(message.data)
    width, height = _size(data)
    if height * width > MOST_PIXELS:
        raise ImageError(f"{width} x {height} are too many: {MOST_PIXELS} pixels at most")
    try:
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if height * width else None
    except cv2.error:
        decoded = None
    if decoded is None:
        raise ImageError(f"{len(data)} bytes of format '{message.format}' cannot be decoded: publish JPEG or PNG")
    return np.ascontiguousarray(decoded[:, :, ::-1])


def _size(data: bytes) -> tuple[int, int]:
    """Width and height in the header of a PNG or JPEG; (0, 0) of anything else."""
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    at = 2 if data[:2] == b"\xff\xd8" else len(data)
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # a frame's header: tables lie between
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4])
    return 0, 0
