"""Statistics against hand-worked values and numpy on the raw data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.data.layout import Episode
from embodied_rl.data.statistics import array_statistics, histogram, image_statistics


def test_array_statistics_by_hand() -> None:
    stats = array_statistics(np.array([[0.0, 10.0], [1.0, 10.0], [2.0, 10.0], [3.0, 10.0]]))
    assert stats["min"] == [0.0, 10.0]
    assert stats["max"] == [3.0, 10.0]
    assert stats["mean"] == [1.5, 10.0]
    assert stats["std"] == pytest.approx([np.sqrt(1.25), 0.0])  # ((1.5^2 + 0.5^2) * 2) / 4
    assert stats["q50"] == [1.5, 10.0]
    assert stats["count"] == [4]
    assert stats["q01"] == pytest.approx([0.03, 10.0])
    assert stats["q99"] == pytest.approx([2.97, 10.0])


def test_image_statistics_by_hand() -> None:
    image = np.zeros((1, 2, 2, 3), np.uint8)
    image[0, 0, 0] = [255, 51, 0]
    stats = image_statistics(histogram(image), 1)
    assert np.shape(stats["mean"]) == (3, 1, 1)
    assert stats["count"] == [1]
    assert np.ravel(stats["mean"]) == pytest.approx([0.25, 0.05, 0.0])
    assert np.ravel(stats["max"]) == pytest.approx([1.0, 0.2, 0.0])
    assert np.ravel(stats["min"]) == pytest.approx([0, 0, 0])
    assert np.ravel(stats["std"])[0] == pytest.approx(np.sqrt(3) / 4)
    assert np.ravel(stats["q50"]) == pytest.approx([0, 0, 0])
    assert np.ravel(stats["q90"])[0] == pytest.approx(1.0)


def test_dataset_statistics_equal_those_of_all_frames(dataset: Path, episodes: list[Episode]) -> None:
    stats = json.loads((dataset / "meta/stats.json").read_text())
    action = np.concatenate([episode.action for episode in episodes])
    np.testing.assert_allclose(stats["action"]["mean"], action.mean(0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(stats["action"]["q99"], np.quantile(action, 0.99, axis=0), rtol=1e-5)
    pixels = np.concatenate([episode.images[:, 1] for episode in episodes]) / 255.0
    wrist = stats["observation.images.wrist"]
    np.testing.assert_allclose(np.ravel(wrist["mean"]), pixels.mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(np.ravel(wrist["std"]), pixels.std((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(np.ravel(wrist["q10"]), np.quantile(pixels, 0.1, axis=(0, 1, 2)), atol=1 / 255)
    assert wrist["count"] == [55]
