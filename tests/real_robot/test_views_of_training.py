"""Cameras held against what training saw: swapped ones and one on both topics are found, and nothing is pretended."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.real_robot.core.views_of_training import compare_views, small_view


def scene(seed: int, size: int = 64) -> np.ndarray:
    """Soft coloured patches."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return np.kron(coarse, np.ones((size // 8, size // 8, 1), np.uint8)).astype(np.uint8)


def changed(seed: int) -> np.ndarray:
    """The same in other light, noise and size, with something in front of a part of it."""
    image = scene(seed, 128).astype(np.float64) * 0.7 + 20 + np.random.default_rng(9).normal(0, 15, (128, 128, 3))
    image[40:80, 60:100] = 30
    return np.clip(image, 0, 255).astype(np.uint8)


STORED = [small_view(scene(0)), small_view(scene(1))]


def test_the_right_cameras_pass_and_swapped_ones_are_named() -> None:
    passed, words = compare_views({"front": changed(0), "wrist": changed(1)}, STORED)
    assert passed
    assert words.startswith("alike to training's views, of 1: front 0.")
    passed, words = compare_views({"front": changed(1), "wrist": changed(0)}, STORED)
    assert (passed, words) == (False, "front and wrist look swapped: each is more like the other's view in training")


def test_a_scene_that_is_like_neither_passes() -> None:
    assert compare_views({"front": scene(5), "wrist": scene(6)}, STORED)[0]


@pytest.mark.parametrize("stored", [None, STORED])
def test_one_camera_on_both_topics_is_found(stored: list[str] | None) -> None:
    noise = np.random.default_rng(3).normal(0, 3, (64, 64, 3))
    again = np.clip(scene(0) + noise, 0, 255).astype(np.uint8)
    passed, words = compare_views({"front": scene(0), "wrist": again}, stored)
    assert (passed, words) == (False, "front and wrist show the same: is one camera on both topics?")


@pytest.mark.parametrize("stored", [None, [], STORED[:1]])
def test_without_stored_views_nothing_is_pretended(stored: list[str] | None) -> None:
    passed, words = compare_views({"front": scene(0), "wrist": scene(1)}, stored)
    assert passed
    assert words.startswith("CAUTION: no views of training are stored")


@pytest.mark.parametrize("stored", [["?", "?"], ["AAAA", "AAAA"], [3, 4]])
def test_views_that_are_none_are_refused(stored: list[str]) -> None:
    assert not compare_views({"front": scene(0), "wrist": scene(1)}, stored)[0]


@pytest.mark.parametrize("size", [(1, 1), (7, 300), (480, 640)])
def test_a_view_of_any_size_is_a_kilobyte(size: tuple[int, int]) -> None:
    assert len(small_view(np.zeros((*size, 3), np.uint8))) == 1024
