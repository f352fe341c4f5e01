"""Camera images of a data set, decoded when they are asked for, with as many kept as a budget of memory holds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import av
import cv2
import numpy as np
import pyarrow.parquet as pq

from embodied_rl.data import video
from embodied_rl.data.metadata import Metadata, image_size, one_line
from embodied_rl.errors import UserError
from embodied_rl.types import Array

CACHE_BYTES = 4 * 2**30
_BLOCK_BYTES = 8 * 2**20
_THREADS = 4
_TOLERANCE = 0.25
"""Of a frame's duration: how far a video's frame may lie from the moment of its row."""


@dataclass(frozen=True, slots=True)
class VideoBlock:
    """Frames of a video that are decoded together: a run of one group of pictures.

    size: height and width. start: timestamp of decoding at which the group begins. pts: presentation time of each, in
    ticks, ascending.
    """

    path: Path
    size: tuple[int, int]
    start: int
    pts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.pts)


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """Rows first:first + count of a row group of a data file, whose column `camera` holds encoded images of `size`."""

    path: Path
    size: tuple[int, int]
    group: int
    camera: str
    first: int
    count: int

    def __len__(self) -> int:
        return self.count


Block = VideoBlock | ImageBlock


@dataclass(frozen=True, slots=True)
class ImageFit:
    """What is made of each image, uint8 [H,W,3], as soon as it is decoded: `resize(image, size)` [size,size,3]."""

    size: int
    resize: Callable[[Array, int], Array]


class _Take(Protocol):
    def __call__(self, number: int, images: Array) -> None: ...


class Frames:
    """uint8 [F,V,H,W,3], read by rows: `frames[rows]` decodes what is not kept and returns an array.

    Which rows are kept in memory never changes what is returned. Safe to use from one thread at a time. sizes: height
    and width of the cameras' images in the files, before any `fit`.
    """

    def __init__(
        self,
        root: Path,
        sizes: Sequence[tuple[int, int]],
        blocks: Sequence[Block],
        block: Array,
        slot: Array,
        fit: ImageFit | None = None,
    ) -> None:
        """block, slot: int64 [F,V], the block of each image and its place there. fit: None where all have one size."""
        self.sizes, self._fit = tuple(sizes), fit
        self.shape = (*block.shape, *(sizes[0] if fit is None else (fit.size, fit.size)), 3)
        self.cache_bytes, self.kept_bytes = CACHE_BYTES, 0
        self._root, self._blocks, self._block, self._slot = root, blocks, block, slot
        self._kept: OrderedDict[int, Array] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        rows = np.arange(len(self))[key]
        flat = np.atleast_1d(rows)
        out = np.empty((len(flat), *self.shape[1:]), np.uint8)
        wanted: dict[int, list[tuple[int, int, int]]] = {}
        for i, row in enumerate(flat):
            for v in range(self.shape[1]):
                wanted.setdefault(int(self._block[row, v]), []).append((i, v, int(self._slot[row, v])))

        def take(number: int, images: Array) -> None:
            with self._lock:
                for i, v, slot in wanted[number]:
                    out[i, v] = images[slot]
                self._keep(number, images)

        files: dict[tuple[type, Path], list[int]] = {}
        for number in wanted:
            if number in self._kept:
                take(number, self._kept[number])
            else:
                files.setdefault((type(self._blocks[number]), self._blocks[number].path), []).append(number)
        with ThreadPoolExecutor(_THREADS) as pool:
            for job in [pool.submit(self._decode, numbers, take) for numbers in files.values()]:
                job.result()
        return out.reshape(*rows.shape, *self.shape[1:])

    def _keep(self, number: int, images: Array) -> None:
        self.kept_bytes += images.nbytes if number not in self._kept else 0
        self._kept[number] = images
        self._kept.move_to_end(number)
        while self.kept_bytes > self.cache_bytes:
            self.kept_bytes -= self._kept.popitem(last=False)[1].nbytes

    def _decode(self, numbers: Sequence[int], take: _Take) -> None:
        """Decode blocks of one file."""
        with one_line(self._root):
            blocks = {number: self._blocks[number] for number in numbers}
            videos = {n: block for n, block in blocks.items() if isinstance(block, VideoBlock)}
            if videos:
                _decode_video(videos, lambda number, images: take(number, self._fitted(images)))
            for number, block in blocks.items():
                if isinstance(block, ImageBlock):
                    take(number, self._fitted(_decode_images(block)))

    def _fitted(self, images: Array) -> Array:
        fit = self._fit
        if fit is None or images.shape[1:3] == (fit.size, fit.size):
            return images
        return np.stack([fit.resize(image, fit.size) for image in images])


def join_frames(parts: Sequence[Frames]) -> Frames:
    """The frames of several data sets as those of one, in their order; all have one shape and one fit."""
    first, blocks, block = parts[0], list[Block](), list[Array]()
    for part in parts:
        block.append(part._block + len(blocks))
        blocks += part._blocks
    slot = np.concatenate([part._slot for part in parts])
    joined = Frames(first._root, first.sizes, blocks, np.concatenate(block), slot, first._fit)
    joined.cache_bytes = sum(part.cache_bytes for part in parts)
    return joined


def open_frames(meta: Metadata, times: Array, starts: Array, file_rows: Array, fit: ImageFit | None = None) -> Frames:
    """Find the image of every row and camera, without decoding.

    Args:
        times: float64 [F], seconds since the beginning of the row's episode.
        starts: int64 [E+1], rows of episode e.
        file_rows: int64 [F], the row's number in its data file.
        fit: what is made of the images; None: they are as they come, all of one size.

    Raises:
        UserError: a file is missing or damaged, an image is not there, or its size is not the declared one.
    """
    sizes = {camera: image_size(meta.root, camera, meta.feature(camera)) for camera in meta.cameras}
    if fit is None and len(set(sizes.values())) != 1:
        found = ", ".join(f"{camera} {h} x {w}" for camera, (h, w) in sizes.items())
        raise UserError(f"{meta.root}: cameras must share one image size, found {found}: choose some with --cameras")
    blocks: list[Block] = []
    block, slot = (np.full((len(times), len(meta.cameras)), -1, np.int64) for _ in range(2))
    for v, (camera, size) in enumerate(sizes.items()):
        limit = max(1, _BLOCK_BYTES // (size[0] * size[1] * 3))
        find = _find_in_videos if meta.feature(camera)["dtype"] == "video" else _find_in_tables
        for rows, found, numbers, places in find(meta, camera, size, limit, times, starts, file_rows):
            block[rows, v], slot[rows, v] = numbers + len(blocks), places
            blocks += found
    if (block < 0).any():
        raise UserError(
            f"{meta.root}: {int((block < 0).any(1).sum())} rows have no image; collect or download it again"
        )
    return Frames(meta.root, list(sizes.values()), blocks, block, slot, fit)


def frames_of_videos(
    root: Path, videos: Sequence[Sequence[Path]], lengths: Sequence[int], size: tuple[int, int]
) -> Frames:
    """Frames of episodes whose videos hold them and nothing else, one after the other.

    Args:
        root: where they are, for messages.
        videos: of each episode, one a camera.
        lengths: frames of each episode.
        size: height and width in pixels.

    Raises:
        UserError: a video is missing or damaged.
    """
    limit, blocks, columns = max(1, _BLOCK_BYTES // (size[0] * size[1] * 3)), list[Block](), []
    for files, length in zip(videos, lengths, strict=True):
        row = []
        for path in files:
            index = video.index(path)
            if len(index.pts) != length:
                raise UserError(f"{path} has {len(index.pts)} frames, its episode {length}; remove the episode")
            found, number, slot = _video_blocks(path, index, limit)
            row.append((number + len(blocks), slot))
            blocks += found
        columns.append(np.array(row).reshape(-1, 2, length))
    block, slot = np.concatenate(columns, axis=2).transpose(1, 2, 0)
    return Frames(root, [size] * block.shape[1], blocks, block, slot)


_Found = Iterator[tuple[Array, Sequence[Block], Array, Array]]
"""Rows, blocks, and of each row the number of its block among them and its place there."""


def _find_in_videos(
    meta: Metadata, camera: str, size: tuple[int, int], limit: int, times: Array, starts: Array, _file_rows: Array
) -> _Found:
    members: dict[tuple[int, int], list[int]] = {}
    for e, episode in enumerate(meta.episodes):
        members.setdefault(episode.videos[camera].place, []).append(e)
    for place, episodes in members.items():
        path = meta.file("video_path", place, camera)
        index = video.index(path)
        if index.size != size:
            raise UserError(
                f"{path} is {index.size[0]} x {index.size[1]} pixels, info.json says {size[0]} x {size[1]} "
                "(height x width): correct the shape there"
            )
        rows = np.concatenate([np.arange(starts[e], starts[e + 1]) for e in episodes])
        spans = [meta.episodes[e].videos[camera] for e in episodes]
        begins = np.repeat([span.start for span in spans], [meta.episodes[e].length for e in episodes])
        frames = _nearest(path, index.seconds, times[rows] + begins, meta.fps)
        _check_spans(meta, path, camera, episodes)
        if len(np.unique(frames)) != len(frames):
            raise UserError(f"{path}: two rows are at one frame: the times in meta/episodes or the data are wrong")
        blocks, number, place_in = _video_blocks(path, index, limit)
        yield rows, blocks, number[frames], place_in[frames]


def _nearest(path: Path, seconds: Array, wanted: Array, fps: float) -> Array:
    """The frame of each moment: the nearest, which must be nearer than a share of a frame's duration."""
    after = np.clip(np.searchsorted(seconds, wanted), 1, max(len(seconds) - 1, 1))
    before, behind = (np.abs(wanted - seconds[np.minimum(at, len(seconds) - 1)]) for at in (after - 1, after))
    near = after - (before <= behind)
    off = np.abs(seconds[near] - wanted) > _TOLERANCE / fps
    if off.any():
        raise UserError(
            f"{path} lacks {int(off.sum())} frames, such as the one at {wanted[off][0]:.3f} s at {fps:g} a second; "
            "the dataset is damaged, collect it again"
        )
    return near


def _check_spans(meta: Metadata, path: Path, camera: str, episodes: Sequence[int]) -> None:
    """Each episode must end in its video where its length says."""
    for e in episodes:
        episode = meta.episodes[e]
        span = episode.videos[camera]
        if abs(span.end - span.start - episode.length / meta.fps) > 0.5 / meta.fps:
            raise UserError(
                f"{path}: episode {episode.index} is {episode.length} frames at {meta.fps:g} a second, but stands from "
                f"{span.start:.3f} to {span.end:.3f} s: correct meta/episodes or fps"
            )


def _video_blocks(path: Path, index: video.Index, limit: int) -> tuple[list[Block], Array, Array]:
    """Blocks of at most `limit` frames, and of each frame its block and its place there."""
    count = len(index.pts)
    gop = np.maximum(np.searchsorted(index.key_pts, index.pts, side="right") - 1, 0)
    in_gop = np.arange(count) - np.searchsorted(gop, gop, side="left")
    begins = np.flatnonzero(in_gop % limit == 0)
    number = np.repeat(np.arange(len(begins)), np.diff(begins, append=count))
    blocks: list[Block] = [
        VideoBlock(path, index.size, int(index.key_dts[gop[first]]), tuple(index.pts[first:end].tolist()))
        for first, end in zip(begins, [*begins[1:], count], strict=True)
    ]
    return blocks, number, np.arange(count) - begins[number]


def _decode_video(blocks: Mapping[int, VideoBlock], take: _Take) -> None:
    path = next(iter(blocks.values())).path
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        for number, block in sorted(blocks.items(), key=lambda item: item[1].pts[0]):
            place = {pts: slot for slot, pts in enumerate(block.pts)}
            images = np.empty((len(block), *block.size, 3), np.uint8)
            container.seek(block.start, stream=stream)
            for frame in container.decode(stream):
                slot = place.pop(frame.pts, None) if frame.pts is not None else None
                if slot is not None:
                    images[slot] = video.rgb(frame)
                if not place or (frame.pts is not None and frame.pts > block.pts[-1]):
                    break
            if place:
                raise UserError(f"{path} lacks {len(place)} frames; the dataset is damaged, collect it again")
            take(number, images)


def _find_in_tables(
    meta: Metadata, camera: str, size: tuple[int, int], limit: int, _times: Array, starts: Array, file_rows: Array
) -> _Found:
    members: dict[tuple[int, int], list[int]] = {}
    for e, episode in enumerate(meta.episodes):
        members.setdefault(episode.data, []).append(e)
    for place, episodes in members.items():
        path = meta.file("data_path", place)
        with pq.ParquetFile(path) as file:
            if camera not in file.schema_arrow.names:
                raise UserError(f"{path} has no column '{camera}', which info.json lists as images")
            groups = [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)]
        blocks = [
            ImageBlock(path, size, g, camera, first, min(limit, count - first))
            for g, count in enumerate(groups)
            for first in range(0, count, limit)
        ]
        begins = np.cumsum([0, *(len(block) for block in blocks)])
        rows = np.concatenate([np.arange(starts[e], starts[e + 1]) for e in episodes])
        number = np.searchsorted(begins, file_rows[rows], side="right") - 1
        _decode_images(ImageBlock(path, size, 0, camera, 0, 1))
        yield rows, blocks, number, file_rows[rows] - begins[number]


def _decode_images(block: ImageBlock) -> Array:
    shape = (*block.size, 3)
    with pq.ParquetFile(block.path) as file:
        column = file.read_row_group(block.group, columns=[block.camera]).column(0)
    images = []  # a declared size is not believed before an image has it
    for value in column.slice(block.first, block.count):
        data = value.as_py()
        data = data.get("bytes") if isinstance(data, dict) else data
        if not isinstance(data, bytes):
            raise UserError(f"{block.path}: '{block.camera}' must hold the bytes of an image in every row")
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
        if image is None or image.shape != shape:
            found = "is no image" if image is None else f"is {image.shape[0]} x {image.shape[1]} pixels"
            raise UserError(
                f"{block.path}: an image of '{block.camera}' {found}, info.json says {shape[0]} x {shape[1]} "
                "(height x width): correct the shape there"
            )
        images.append(image[..., ::-1])
    return np.stack(images)
