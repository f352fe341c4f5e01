"""Pictures of any size become the policy's, as openpi's and OpenVLA's own tools make them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from embodied_rl.policies.preprocessing.images import PIPELINES, image_pipeline
from embodied_rl.policies.preprocessing.resize import bilinear_pillow, bilinear_pillow_padded
from embodied_rl.real_robot.server.pictures import PictureFitter
from embodied_rl.types import Array


def picture(height: int, width: int) -> Array:
    return np.random.default_rng(height + 7 * width).integers(0, 256, (height, width, 3), np.uint8)


def pillow_padded(image: Array, size: int) -> Array:
    """What openpi's client does, with Pillow."""
    ratio = max(image.shape[1] / size, image.shape[0] / size)
    height, width = int(image.shape[0] / ratio), int(image.shape[1] / ratio)
    out = Image.new("RGB", (size, size), 0)
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    out.paste(resized, ((size - width) // 2, (size - height) // 2))
    return np.asarray(out)


@pytest.mark.parametrize("shape", [(480, 640), (640, 480), (37, 21), (21, 64), (300, 300), (64, 64), (720, 1280)])
def test_bars_and_pixels_are_pillows(shape: tuple[int, int]) -> None:
    assert np.array_equal(bilinear_pillow_padded(picture(*shape), 64), pillow_padded(picture(*shape), 64))


def test_a_square_has_no_bars() -> None:
    assert np.array_equal(bilinear_pillow_padded(picture(256, 256), 64), bilinear_pillow(picture(256, 256), 64))


@pytest.mark.parametrize("name", ["openvla", "rlinf"])
def test_a_recorded_picture_goes_through_the_policys_pipeline(name: str) -> None:
    steps = image_pipeline(name)
    frame = picture(256, 256)
    whole = PictureFitter(size=224, pipeline=name)(frame[:, ::-1])
    assert steps.resize is not None
    cut = PIPELINES[name](frame, 224)
    assert np.array_equal(whole if steps.crop_area is None else _crop(whole, steps.crop_area), cut)


def _crop(image: Array, area: float) -> Array:
    from embodied_rl.policies.preprocessing.resize import center_crop_tf

    return center_crop_tf(image, area)


@pytest.mark.parametrize("name", PIPELINES)
def test_a_picture_of_the_policys_size_is_left_alone(name: str) -> None:
    assert np.array_equal(PictureFitter(size=64, pipeline=name)(picture(64, 64)), picture(64, 64))
    mirrored = PictureFitter(size=64, pipeline=name, mirror=True)(picture(64, 64))
    assert np.array_equal(mirrored, picture(64, 64)[:, ::-1])


@settings(max_examples=25)
@given(height=st.integers(8, 400), width=st.integers(8, 400), name=st.sampled_from(sorted(PIPELINES)))
def test_any_size_fits(height: int, width: int, name: str) -> None:
    made = PictureFitter(size=32, pipeline=name)(picture(height, width))
    assert made.shape == (32, 32, 3)
    assert made.dtype == np.uint8
    assert made.flags.c_contiguous
