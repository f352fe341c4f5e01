"""The GIF of before and after, from two short videos written here."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

from embodied_rl.benchmarks.lab.before_after import compose, main
from embodied_rl.jobs.videos import FRAME_SIZE
from embodied_rl.telemetry.video import CAPTION_HEIGHT, VideoWriter


def film(path: Path, length: int, grey: int) -> None:
    with VideoWriter(path, fps=20) as video:
        for _ in range(length):
            video.write(np.full((2 * CAPTION_HEIGHT + FRAME_SIZE, 2 * FRAME_SIZE, 3), grey, np.uint8))


def test_both_videos_are_joined(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    film(tmp_path / "videos" / "open_it-before.mp4", 24, 40)
    film(tmp_path / "videos" / "open_it-after.mp4", 12, 200)
    out = tmp_path / "x.gif"
    assert main([str(tmp_path), "--out", str(out)]) == 0
    with av.open(str(out)) as container:
        images = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(images) == 12  # every second one of the longer video
    middle = images[-1].shape[0] // 2
    above, below = images[-1][middle // 2, 80], images[-1][middle + middle // 2, 80]
    assert above.mean() < 80
    assert below.mean() > 160


def test_a_clip_that_ended_shows_its_last_frame() -> None:
    short, long = np.zeros((1, 8, 8, 3), np.uint8), np.arange(3, dtype=np.uint8).repeat(192).reshape(3, 8, 8, 3)
    images = compose([(long, short)])
    assert [int(image[CAPTION_HEIGHT + 4, 4, 0]) for image in images] == [0, 1, 2]


def test_a_folder_without_videos_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--out", str(tmp_path / "x.gif")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
