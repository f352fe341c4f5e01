"""What an arm's cameras see beside what the policy was trained on, in one picture for a person to look at."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from embodied_rl.data.lerobot import load
from embodied_rl.errors import UserError
from embodied_rl.real_robot.record.episodes import Image, read_images, stored_images
from embodied_rl.real_robot.record.reader import RecordingFile
from embodied_rl.real_robot.twin.plant import Plant
from embodied_rl.telemetry.video import captioned, tile
from embodied_rl.types import Array

SIDE = 256
"""Pixels of a view's side in the picture."""
_WAIT_S, _LOOK_S = 10.0, 0.3


def recorded_views(recording: Path) -> dict[str, Array]:
    """The last picture of each camera, uint8 [H, W, 3], of a recording that is being written.

    Raises:
        UserError: A camera has none after 10 s.
    """
    deadline = time.monotonic() + _WAIT_S
    while True:
        file = RecordingFile(recording)
        cameras = file.session.cameras
        last: dict[str, Image] = {}
        for picture in sorted(stored_images(file, cameras), key=lambda picture: picture[1]):
            last[picture[0]] = picture
        if len(last) == len(cameras):
            seen = dict(read_images(file, set(last.values())))
            return {camera: seen[last[camera]] for camera in cameras}
        if time.monotonic() > deadline:
            missing = ", ".join(camera for camera in cameras if camera not in last)
            raise UserError(f"no image of {missing} in {_WAIT_S:.0f} s: what do the checks say?")
        time.sleep(_LOOK_S)


def simulated_views(suite: str) -> list[Array]:
    """The cameras' pictures of a tabletop suite's first task in its first state, as training draws them."""
    plant = Plant(suite, image_size=SIDE)
    plant.reset(plant.tasks[0], 0, 0)
    return list(plant.images())


def data_set_views(data_set: Path) -> list[Array]:
    """The first pictures of a LeRobot data set, one a camera."""
    return list(load(data_set).images[np.array([0])][0])


def write_views(path: Path, live: dict[str, Array], training: Sequence[Array]) -> None:
    """Write a PNG: a row a camera, what it sees at the left, training's view at the right.

    Args:
        path: The PNG.
        live: By camera, in the policy's order.
        training: In the same order; empty where none is known: the left column alone.

    Raises:
        UserError: Training looked through another number of cameras.
    """
    if training and len(training) != len(live):
        raise UserError(f"the arm has the cameras {', '.join(live)}, training had {len(training)}")
    rows = []
    for index, (camera, picture) in enumerate(live.items()):
        row = [captioned(_squared(picture), f"{camera}: now")]
        if training:
            row.append(captioned(_squared(training[index]), f"{camera}: training"))
        rows.append(tile(row))
    cv2.imwrite(str(path), np.concatenate(rows)[..., ::-1])


def _squared(picture: Array) -> Array:
    """Fit into SIDE x SIDE, with black bars."""
    height, width = picture.shape[:2]
    scale = SIDE / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST)
    out = np.zeros((SIDE, SIDE, 3), np.uint8)
    top, left = (SIDE - size[1]) // 2, (SIDE - size[0]) // 2
    out[top : top + size[1], left : left + size[0]] = small
    return out
