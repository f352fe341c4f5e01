"""Small datasets and policies for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.data import writer
from embodied_rl.data.layout import DatasetSpec, Episode

SPEC = DatasetSpec(("agentview", "wrist"), 16, tuple(f"s{i}" for i in range(8)), tuple(f"a{i}" for i in range(7)))


def make_episode(key: int, length: int, instruction: str = "push the cube") -> Episode:
    rng = np.random.default_rng(key)
    images = rng.integers(0, 256, (length, 2, 16, 16, 3), dtype=np.uint8)
    state = rng.normal(size=(length, 8)).astype(np.float32)
    action = rng.uniform(-1, 1, (length, 7)).astype(np.float32)
    executed = action.copy()
    if key == 3:  # one push, in the first frame of one episode
        executed[0] = np.clip(action[0] + 0.1, -1, 1)
    return Episode(key, instruction, images, state, action, executed, {"task": "toy/push", "seed": key})


@pytest.fixture
def spec() -> DatasetSpec:
    return SPEC


@pytest.fixture
def new_episode() -> Callable[[int, int], Episode]:
    """make_episode(key, length): random content that depends on the key alone."""
    return make_episode


@pytest.fixture
def episodes() -> list[Episode]:
    return [make_episode(k, 5 + 3 * k, f"push cube {k % 2}") for k in range(5)]


@pytest.fixture
def dataset(tmp_path: Path, episodes: list[Episode]) -> Path:
    out = tmp_path / "demo"
    partial = writer.begin(out, {"suite": "toy"})
    for episode in reversed(episodes):  # arrival order must not matter
        writer.add_episode(partial, SPEC, episode)
    writer.finalize(out, SPEC, {"renderer": "none"})
    return out
