"""A film of an episode whose simulator breaks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.jobs.videos import record_video
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.vec_env import SimulatorFailed
from tests.toy import ToyEnv, ToyPolicy

SPEC = EpisodeSpec(3, "toy/reach", 0, 1)


class Watched(ToyEnv):
    """The toy with a camera."""

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        return np.full((size, size, 3), 128, np.uint8)


def test_the_film_begins_anew_until_the_simulator_lasts(tmp_path: Path) -> None:
    calm = record_video(Watched(1), ToyPolicy(), SPEC, "greedy", tmp_path / "calm.mp4", "toy")
    shaky = Watched(1, breaks={SPEC.episode_id: 2})
    assert record_video(shaky, ToyPolicy(), SPEC, "greedy", tmp_path / "shaky.mp4", "toy") == calm
    assert len(shaky.started) == 3
    assert (tmp_path / "shaky.mp4").stat().st_size == (tmp_path / "calm.mp4").stat().st_size


@pytest.mark.parametrize("worlds", [Watched(1, breaks={SPEC.episode_id: 5}), Watched(1, unseen={("toy/reach", 0)})])
def test_a_simulator_that_always_breaks_is_one_line(worlds: ToyEnv, tmp_path: Path) -> None:
    with pytest.raises(SimulatorFailed, match="'toy/reach', initial state 0, broke the simulator 3 times"):
        record_video(worlds, ToyPolicy(), SPEC, "greedy", tmp_path / "film.mp4", "toy")
    assert list(tmp_path.iterdir()) == []
