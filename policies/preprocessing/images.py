"""From a rendered frame to the picture that a published policy was trained on, one named pipeline each.

LIBERO's official frames are upside down (OpenGL's row order), and every published pipeline turns them by 180 degrees.
A frame of ours is upright, so the same picture is its mirror image: left and right are swapped. After that come, in
this order, a JPEG round trip, a resize to the policy's size, and a crop of the middle that is scaled back. Nothing
here needs TensorFlow, Pillow or torchvision; how exactly each step agrees with them is said where it is defined.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.preprocessing.jpeg import jpeg_round_trip
from embodied_rl.policies.preprocessing.resize import bicubic_torchvision, bilinear_pillow, center_crop_tf, lanczos3_tf
from embodied_rl.types import Array


@dataclass(frozen=True, slots=True)
class ImagePipeline:
    """What happens to one frame, uint8 [H, W, 3], row 0 at the top.

    resize: (picture, size) -> uint8 [size, size, 3]; None takes only frames of the policy's size. crop_area: share of
    the area that the centre crop keeps; None crops nothing.
    """

    mirror: bool = False
    jpeg: bool = False
    resize: Callable[[Array, int], Array] | None = None
    crop_area: float | None = None

    def __call__(self, frame: Array, size: int) -> Array:
        """The picture, uint8 [size, size, 3]; ValueError when nothing resizes the frame to that size."""
        image = frame[:, ::-1] if self.mirror else frame
        if self.jpeg:
            image = jpeg_round_trip(image)
        if image.shape[:2] != (size, size):
            if self.resize is None:
                raise ValueError(f"frames are {frame.shape[:2]} and the policy takes {size}: render them at that size")
            image = self.resize(image, size)
        return image if self.crop_area is None else center_crop_tf(image, self.crop_area)


PIPELINES = {
    "as_rendered": ImagePipeline(),
    "resized": ImagePipeline(resize=bilinear_pillow),
    # openvla/openvla and moojink/openvla-oft, experiments/robot: libero/libero_utils.py, openvla_utils.py;
    # PRIME-RL/SimpleVLA-RL has the same in verl/utils/libero_utils.py and verl/workers/rollout/rob_rollout.py
    "openvla": ImagePipeline(mirror=True, jpeg=True, resize=lanczos3_tf, crop_area=0.9),
    # Physical-Intelligence/openpi: examples/libero/main.py, openpi_client/image_tools.py; square frames have no bars
    "openpi": ImagePipeline(mirror=True, resize=bilinear_pillow),
    # huggingface/lerobot: envs/libero.py, processor/env_processor.py; its policies resize, if at all
    "lerobot": ImagePipeline(mirror=True),
    # RLinf/RLinf with OpenVLA-OFT: rlinf/envs/libero/utils.py, rlinf/models/embodiment/prismatic/
    # processing_prismatic.py (the resize of the model's own image processor, on tensors)
    "rlinf": ImagePipeline(mirror=True, resize=bicubic_torchvision),
}
"""By name; the frames of the first and the last are rendered at the policy's size, of the others at 256 x 256."""


def image_pipeline(name: str) -> ImagePipeline:
    """The pipeline of that name; UserError for another."""
    if name not in PIPELINES:
        raise UserError(f"unknown image pipeline '{name}'.{suggest(name, PIPELINES)}")
    return PIPELINES[name]


def prepare(pipeline: ImagePipeline, frames: Array, out: Array, pool: Executor | None = None) -> None:
    """Fill out, uint8 [N, V, S, S, 3], from frames, uint8 [N, V, H, W, 3]; with `pool`, one job a picture."""
    size = out.shape[2]
    flat_in = frames.reshape(-1, *frames.shape[2:])
    flat_out = out.reshape(-1, *out.shape[2:])
    if not np.shares_memory(flat_out, out):
        raise ValueError("out must be contiguous")

    def one(index: int) -> None:
        flat_out[index] = pipeline(flat_in[index], size)

    list((pool.map if pool is not None else map)(one, range(len(flat_in))))
