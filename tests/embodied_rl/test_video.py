"""Videos for people: what is written can be read, and a failed recording leaves nothing behind."""

from __future__ import annotations

import contextlib
from pathlib import Path

import av
import numpy as np
import pytest

from embodied_rl.telemetry.video import CAPTION_HEIGHT, VideoWriter, caption_rows, captioned, tile


def _read(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.codec_context.name == "h264"
        assert stream.codec_context.pix_fmt == "yuv420p"
        assert stream.average_rate == 20
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


def _smooth(step: int, height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 200 // width, y * 200 // height, np.full_like(x, 10 * step)], axis=-1).astype(np.uint8)


def test_frames_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "a.mp4"
    frames = [_smooth(step, 48, 64) for step in range(10)]
    with VideoWriter(path, fps=20) as video:
        for frame in frames:
            video.write(frame)
        assert not path.exists()  # only whole files get the name
    read = _read(path)
    assert len(read) == 10
    for frame, back in zip(frames, read, strict=True):
        assert np.abs(frame.astype(int) - back).mean() < 4
    assert sorted(p.name for p in path.parent.iterdir()) == ["a.mp4"]


def test_odd_sizes_are_padded(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", fps=20) as video:
        video.write(_smooth(1, 47, 63))
    assert _read(tmp_path / "a.mp4")[0].shape == (48, 64, 3)


def test_an_exception_keeps_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"before")
    with contextlib.suppress(InterruptedError), VideoWriter(path, fps=20) as video:
        video.write(_smooth(1, 48, 64))
        raise InterruptedError
    assert path.read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_wrong_frames_are_refused(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "a.mp4", fps=20) as video:
        video.write(_smooth(1, 48, 64))
        with pytest.raises(ValueError, match="uint8"):
            video.write(np.zeros((48, 64, 3)))
        with pytest.raises(ValueError, match="must be"):
            video.write(_smooth(1, 48, 62))
    with pytest.raises(ValueError, match="no frame"), VideoWriter(tmp_path / "a.mp4", fps=20):
        pass


def test_tile_and_caption() -> None:
    left, right = np.full((4, 3, 3), 10, np.uint8), np.full((4, 5, 3), 20, np.uint8)
    both = tile([left, right], scale=2)
    assert both.shape == (8, 16, 3)
    assert (both[:, :6] == 10).all()
    assert (both[:, 6:] == 20).all()
    picture = np.zeros((40, 200, 3), np.uint8)
    plain, good, bad = (captioned(picture, "put the bowl on the plate " * 5, s) for s in (None, True, False))
    assert plain.shape == (40 + CAPTION_HEIGHT, 200, 3)
    np.testing.assert_array_equal(plain[CAPTION_HEIGHT:], picture)
    right_end = np.s_[:CAPTION_HEIGHT, 150:]
    red, green = np.s_[..., 0], np.s_[..., 1]
    assert (good[right_end][green] > good[right_end][red].astype(int) + 50).any()
    assert (bad[right_end][red] > bad[right_end][green].astype(int) + 50).any()
    assert not (bad[right_end][green] > bad[right_end][red].astype(int) + 50).any()


@pytest.mark.parametrize("flagged", [False, True])
def test_a_caption_with_the_rows_that_it_needs_is_whole(flagged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written, line by line, read where it is drawn."""
    drawn: list[str] = []
    monkeypatch.setattr("embodied_rl.telemetry.video._put", lambda bar, text, *rest: drawn.append(text))
    text = "pick up the black bowl between the plate and the ramekin and place it on the plate"
    frame = np.zeros((40, 256, 3), np.uint8)
    rows = caption_rows(["short", text], 256, flagged=flagged)
    assert captioned(frame, text, True if flagged else None, rows).shape[0] == 40 + rows * CAPTION_HEIGHT
    lines = drawn[flagged:]
    assert " ".join(lines) == text
    assert len(lines) == rows > 1
    drawn.clear()
    captioned(frame, text)
    assert len(drawn) == 1
    assert drawn[0].endswith("...")
