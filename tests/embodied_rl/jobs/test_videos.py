"""A video of an episode whose simulator breaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.jobs.videos import FRAME_SIZE, record_frames, record_video
from embodied_rl.types import Array, EpisodeSpec, Observation
from embodied_rl.vec_env import SimulatorFailed
from tests.toy import ToyEnv, ToyPolicy

SPEC = EpisodeSpec(3, "toy/reach", 0, 1)


class Watched(ToyEnv):
    """The toy with a camera."""

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        return np.full((size, size, 3), 128, np.uint8)


def test_the_video_begins_anew_until_the_simulator_lasts(tmp_path: Path) -> None:
    calm = record_video(Watched(1), ToyPolicy(), SPEC, "greedy", tmp_path / "calm.mp4", "toy")
    shaky = Watched(1, breaks={SPEC.episode_id: 2})
    assert record_video(shaky, ToyPolicy(), SPEC, "greedy", tmp_path / "shaky.mp4", "toy") == calm
    assert len(shaky.started) == 3
    assert (tmp_path / "shaky.mp4").stat().st_size == (tmp_path / "calm.mp4").stat().st_size


class TwoCameras(Watched):
    """The wrist sees brighter pictures."""

    def __init__(self) -> None:
        super().__init__(1)
        self._seen = self.info
        self.info = replace(self.info, cameras=("front", "wrist"))

    def new_observation(self, rows: int) -> Observation:
        return self._seen.new_observation(rows)  # the toy policy sees one

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        return np.full((size, size, 3), 100 if camera == "front" else 200, np.uint8)


def test_every_camera_is_recorded() -> None:
    _, frames = record_frames(TwoCameras(), ToyPolicy(), SPEC, "greedy")
    for frame in frames:
        assert frame.shape == (FRAME_SIZE, 2 * FRAME_SIZE, 3)
        assert (frame[:, :FRAME_SIZE] == 100).all()
        assert (frame[:, FRAME_SIZE:] == 200).all()


@pytest.mark.parametrize("worlds", [Watched(1, breaks={SPEC.episode_id: 5}), Watched(1, unseen={("toy/reach", 0)})])
def test_a_simulator_that_always_breaks_is_one_line(worlds: ToyEnv, tmp_path: Path) -> None:
    with pytest.raises(SimulatorFailed, match="'toy/reach', initial state 0, broke the simulator 3 times"):
        record_video(worlds, ToyPolicy(), SPEC, "greedy", tmp_path / "film.mp4", "toy")
    assert list(tmp_path.iterdir()) == []
