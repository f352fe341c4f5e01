"""Image pipelines against the official libraries' own output (see make_image_goldens.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.policies.preprocessing.images import PIPELINES, ImagePipeline, image_pipeline, prepare
from embodied_rl.policies.preprocessing.jpeg import jpeg_round_trip
from embodied_rl.policies.preprocessing.resize import bicubic_torchvision, bilinear_pillow, center_crop_tf, lanczos3_tf
from embodied_rl.types import Array
from tests.policies.make_image_goldens import LARGE, OUT, SMALL, picture

GOLDEN = np.load(OUT)
STEPS: dict[str, Callable[[Array, int], Array]] = {
    "jpeg": lambda image, size: jpeg_round_trip(image),
    "lanczos3": lanczos3_tf,
    "crop": lambda image, size: center_crop_tf(image, 0.9),
    "openvla": PIPELINES["openvla"],
    "openpi": PIPELINES["openpi"],
}


@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("name", STEPS)
def test_each_step_and_pipeline_equals_the_official_one_bit_for_bit(name: str, kind: int) -> None:
    frame, size = SMALL
    np.testing.assert_array_equal(STEPS[name](picture(kind, frame), size), GOLDEN[f"{name}_{kind}_{frame}"])
    frame, size = LARGE
    result = STEPS[name](picture(kind, frame), size)
    digest = hashlib.sha256(np.ascontiguousarray(result).tobytes()).digest()
    assert digest == GOLDEN[f"{name}_{kind}_{frame}"].tobytes()


def cubic_weights(frame: int, size: int) -> Array:
    """[size, frame]: Keys' kernel with a = -0.5, stretched to antialias, from its definition."""
    scale = frame / size
    stretch = max(scale, 1.0)
    centre = (np.arange(size)[:, None] + 0.5) * scale
    x = np.abs((np.arange(frame)[None] + 0.5 - centre) / stretch)
    inner, outer = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, inner, np.where(x < 2, outer, 0.0))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("kind", range(3))
def test_bicubic_follows_its_definition(kind: int) -> None:
    frame, size = LARGE
    weights = cubic_weights(frame, size)
    exact = np.einsum("yh,hwc,xw->yxc", weights, picture(kind, frame).astype(float), weights, optimize=True)
    error = np.abs(bicubic_torchvision(picture(kind, frame), size) - np.clip(exact, 0, 255))
    assert error.max() < 0.51  # half a level, and float32


def test_the_official_frame_is_upside_down_so_its_half_turn_is_our_mirror_image() -> None:
    upright = picture(1, 16)
    official = upright[::-1]
    for pipeline in (PIPELINES["openvla"], PIPELINES["openpi"], PIPELINES["rlinf"], PIPELINES["lerobot"]):
        assert pipeline.mirror
        np.testing.assert_array_equal(ImagePipeline(mirror=True)(upright, 16), official[::-1, ::-1])
    np.testing.assert_array_equal(PIPELINES["as_rendered"](upright, 16), upright)


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=20)
def test_jpeg_of_a_flat_picture_is_flat_and_near(seed: int, rows: int, columns: int) -> None:
    colour = np.random.default_rng(seed).integers(0, 256, 3, dtype=np.uint8)
    flat = np.broadcast_to(colour, (16 * rows, 16 * columns, 3)).copy()
    out = jpeg_round_trip(flat)
    assert (out == out[0, 0]).all()
    assert np.abs(out[0, 0].astype(int) - colour).max() <= 3


@given(st.integers(0, 255), st.integers(4, 40), st.integers(4, 40))
@settings(max_examples=30)
def test_resizing_keeps_a_flat_picture(value: int, frame: int, size: int) -> None:
    flat = np.full((frame, frame, 3), value, np.uint8)
    for resize in (lanczos3_tf, bilinear_pillow, bicubic_torchvision):
        assert (resize(flat, size) == value).all()
    assert (center_crop_tf(flat, 0.9) == value).all()


@given(st.sampled_from(list(PIPELINES)), st.integers(0, 2))
@settings(max_examples=12)
def test_pipelines_leave_their_input_alone(name: str, kind: int) -> None:
    frame = picture(kind, 32)
    before = frame.copy()
    out = PIPELINES[name](frame, 32)
    assert out.shape == (32, 32, 3)
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(frame, before)


@pytest.mark.parametrize("shape", [(15, 16, 3), (16, 24, 3), (16, 16, 4), (0, 16, 3)])
def test_jpeg_refuses_what_it_was_not_made_for(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="multiples of 16"):
        jpeg_round_trip(np.zeros(shape, np.uint8))


def test_a_frame_of_another_size_needs_a_resize() -> None:
    with pytest.raises(ValueError, match="render them at that size"):
        PIPELINES["as_rendered"](np.zeros((16, 16, 3), np.uint8), 8)
    with pytest.raises(UserError, match="Did you mean 'openvla'"):
        image_pipeline("openvlaa")


def test_prepare_does_every_picture_and_threads_change_nothing() -> None:
    frames = np.stack([picture(kind, 32) for kind in (0, 1, 2, 0, 1, 2)]).reshape(3, 2, 32, 32, 3)
    frames[1] //= 2
    serial, threaded = np.zeros((3, 2, 28, 28, 3), np.uint8), np.zeros((3, 2, 28, 28, 3), np.uint8)
    prepare(PIPELINES["openvla"], frames, serial)
    with ThreadPoolExecutor(3) as pool:
        prepare(PIPELINES["openvla"], frames, threaded, pool)
    np.testing.assert_array_equal(serial, threaded)
    np.testing.assert_array_equal(serial[2, 1], PIPELINES["openvla"](frames[2, 1], 28))
    with pytest.raises(ValueError, match="contiguous"):
        prepare(PIPELINES["openvla"], frames, np.zeros((3, 4, 28, 28, 3), np.uint8)[:, ::3])


def test_the_goldens_are_small_enough_to_keep() -> None:
    assert Path(OUT).stat().st_size < 25_000
