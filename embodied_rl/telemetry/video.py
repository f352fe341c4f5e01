"""Videos for people: H.264 that any browser plays, cameras side by side, with a caption.

For recordings that a policy learns from, which must be lossless, see `embodied_rl.data.video`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import av
import av.filter
import cv2
import numpy as np
from av.video.frame import VideoFrame

from embodied_rl.types import Array

CAPTION_HEIGHT = 24
"""Pixels of a line that `captioned` adds above the picture."""
_INK, _PAPER = (235, 235, 235), (24, 24, 28)
_TEXT_SCALE = 0.42


class VideoWriter:
    """Write an MP4 frame by frame: `with VideoWriter(path, fps=20) as video: video.write(frame)`.

    The file appears under `path` when the block ends without an exception; until then, and after one, nothing of that
    name is touched. All frames have the size of the first; an odd width or height is padded by one black line, since
    yuv420p needs even sides.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float) -> None:
        if fps <= 0:
            raise ValueError(f"fps must be positive, got {fps}")
        self._path = Path(path)
        self._partial = self._path.with_name(f".{self._path.name}.{os.getpid()}.part")
        self._fps = fps
        self._container: Any = None
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def __enter__(self) -> VideoWriter:
        return self

    def write(self, frame: Array) -> None:
        """Append one frame, uint8 [H, W, 3] RGB."""
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(f"a frame must be uint8 [H, W, 3], got {frame.dtype} {frame.shape}")
        if self._container is None:
            self._container, self._stream = self._open(frame.shape)
        if frame.shape != self._shape:
            raise ValueError(f"all frames of {self._path.name} must be {self._shape}, got {frame.shape}")
        height, width = frame.shape[:2]
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)))
        self._container.mux(self._stream.encode(VideoFrame.from_ndarray(even, format="rgb24")))

    def _open(self, shape: tuple[int, ...]) -> tuple[Any, Any]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._shape = shape
        container: Any = av.open(str(self._partial), "w", format="mp4")
        stream = container.add_stream("libx264", rate=Fraction(self._fps).limit_denominator(1000))
        stream.height, stream.width = shape[0] + shape[0] % 2, shape[1] + shape[1] % 2
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "20", "preset": "veryfast"}
        stream.thread_count = 1  # training runs on the other cores
        return container, stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._container is None:
            if kind is None:
                raise ValueError(f"no frame was written to {self._path}")
            return
        try:
            if kind is None:
                self._container.mux(self._stream.encode(None))
            self._container.close()
            if kind is None:
                self._partial.replace(self._path)
        finally:
            self._partial.unlink(missing_ok=True)


def write_gif(file: Path | BinaryIO, frames: Sequence[Array], fps: float) -> None:
    """Write frames, uint8 [H, W, 3] RGB, as a GIF that repeats for ever; one palette of 256 colours serves them all."""
    height, width = frames[0].shape[:2]
    rate = Fraction(fps).limit_denominator(1000)
    graph: Any = av.filter.Graph()
    source = graph.add_buffer(width=width, height=height, format="rgb24", time_base=1 / rate)
    split, palette, use = graph.add("split"), graph.add("palettegen"), graph.add("paletteuse")
    sink = graph.add("buffersink")
    source.link_to(split)
    split.link_to(palette, 0, 0)
    split.link_to(use, 1, 0)
    palette.link_to(use, 0, 1)
    use.link_to(sink)
    graph.configure()
    container: Any = av.open(file, "w", format="gif")
    with container:
        stream = container.add_stream("gif", rate=rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "pal8"
        for number, frame in enumerate(frames):
            picture = VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts, picture.time_base = number, 1 / rate
            source.push(picture)
        source.push(None)
        for _ in frames:
            container.mux(stream.encode(sink.pull()))
        container.mux(stream.encode(None))


def read_video(path: Path) -> tuple[list[Array], float]:
    """Frames of a video file, uint8 [H, W, 3] RGB, and how many it has a second."""
    with av.open(path) as container:
        stream = container.streams.video[0]
        assert stream.average_rate is not None
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)], float(stream.average_rate)


def tile(images: Array | Sequence[Array], scale: int = 1) -> Array:
    """Put images of one height side by side: V times uint8 [H, W, 3] to uint8 [H * scale, V * W * scale, 3]."""
    row = np.concatenate(list(images), axis=1)
    return np.repeat(np.repeat(row, scale, axis=0), scale, axis=1)


def captioned(frame: Array, caption: str, success: bool | None = None, rows: int = 1) -> Array:
    """Add lines of text above the frame, uint8 [H, W, 3] to [H + rows * CAPTION_HEIGHT, W, 3].

    Args:
        frame: uint8 [H, W, 3].
        caption: wrapped at words; what `rows` lines have no room for is left out (see `caption_rows`).
        success: True or False puts SUCCESS (green) or FAIL (red) at the right end of the first line.
        rows: how many lines.
    """
    width, room = frame.shape[1], _room(frame.shape[1], flagged=success is not None)
    bar = np.full((rows * CAPTION_HEIGHT, width, 3), _PAPER, np.uint8)
    if success is not None:
        word, ink = ("SUCCESS", (90, 220, 110)) if success else ("FAIL", (240, 90, 80))
        _put(bar, word, width - 4 - _text_width(word), 0, ink)
    lines = _wrapped(caption, room)
    if len(lines) > rows:
        lines[rows - 1] = _shortened(" ".join(lines[rows - 1 :]), room)
    for row, line in enumerate(lines[:rows]):
        _put(bar, line, 4, row, _INK)
    return np.concatenate([bar, frame], axis=0)


def caption_rows(captions: Iterable[str], width: int, *, flagged: bool = False) -> int:
    """How many lines the longest of `captions` needs above frames of `width` pixels; flagged: beside SUCCESS."""
    return max(len(_wrapped(caption, _room(width, flagged=flagged))) for caption in captions)


def _room(width: int, *, flagged: bool) -> int:
    return width - 8 - (_text_width("SUCCESS") + 8 if flagged else 0)


def _wrapped(text: str, room: int) -> list[str]:
    """Lines of at most `room` pixels; a word that is wider than a line is shortened."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _text_width(longer) > room:
            lines.append(word)
        else:
            lines[-1] = longer
    return [_shortened(line, room) for line in lines]


def _shortened(text: str, room: int) -> str:
    """What fits; '...' at the end where something is left out."""
    kept = text
    while kept and _text_width(kept if kept == text else f"{kept}...") > room:
        kept = kept[:-1]
    return kept if kept == text else f"{kept}..."


def _text_width(text: str) -> int:
    return cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, _TEXT_SCALE, 1)[0][0]


def _put(bar: Array, text: str, left: int, row: int, ink: tuple[int, int, int]) -> None:
    at = (left, (row + 1) * CAPTION_HEIGHT - 8)
    cv2.putText(bar, text, at, cv2.FONT_HERSHEY_SIMPLEX, _TEXT_SCALE, ink, 1, cv2.LINE_AA)
