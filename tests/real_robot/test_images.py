"""Pictures of any size become the policy's, as openpi's and OpenVLA's own tools make them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.policies.preprocessing.images import PIPELINES, image_pipeline
from embodied_rl.policies.preprocessing.resize import bilinear_pillow, bilinear_pillow_padded
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.types import Array


def picture(height: int, width: int) -> Array:
    return np.random.default_rng(height + 7 * width).integers(0, 256, (height, width, 3), np.uint8)


PILLOWS = {
    (480, 640): "4520a9028c4f51f8",
    (640, 480): "032ef3a3e5269581",
    (37, 21): "e77ee9ad53bd2902",
    (21, 64): "e47f23a12edff821",
    (300, 300): "1f83bcccc00daab1",
    (64, 64): "5b139fa1a43941b3",
    (720, 1280): "721e1058d29b5e46",
}
"""Of make_image_goldens.py: SHA-256 of Pillow's result at 64 x 64, by height and width."""


@pytest.mark.parametrize("shape", PILLOWS)
def test_bars_and_pixels_are_pillows(shape: tuple[int, int]) -> None:
    made = bilinear_pillow_padded(picture(*shape), 64)
    assert hashlib.sha256(made.tobytes()).hexdigest()[:16] == PILLOWS[shape]


def test_a_square_has_no_bars() -> None:
    assert np.array_equal(bilinear_pillow_padded(picture(256, 256), 64), bilinear_pillow(picture(256, 256), 64))


@pytest.mark.parametrize("name", ["openvla", "rlinf"])
def test_a_recorded_picture_goes_through_the_policys_pipeline(name: str) -> None:
    steps = image_pipeline(name)
    frame = picture(256, 256)
    whole = ImageFitter(size=224, pipeline=name)(frame[:, ::-1])
    assert steps.resize is not None
    cut = PIPELINES[name](frame, 224)
    assert np.array_equal(whole if steps.crop_area is None else _crop(whole, steps.crop_area), cut)


def _crop(image: Array, area: float) -> Array:
    from embodied_rl.policies.preprocessing.resize import center_crop_tf

    return center_crop_tf(image, area)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_picture_of_the_policys_size_is_left_alone(name: str) -> None:
    assert np.array_equal(ImageFitter(size=64, pipeline=name)(picture(64, 64)), picture(64, 64))
    mirrored = ImageFitter(size=64, pipeline=name, mirror=True)(picture(64, 64))
    assert np.array_equal(mirrored, picture(64, 64)[:, ::-1])


@settings(max_examples=25)
@given(height=st.integers(8, 400), width=st.integers(8, 400), name=st.sampled_from(sorted(PIPELINES)))
def test_any_size_fits(height: int, width: int, name: str) -> None:
    made = ImageFitter(size=32, pipeline=name)(picture(height, width))
    assert made.shape == (32, 32, 3)
    assert made.dtype == np.uint8
    assert made.flags.c_contiguous
