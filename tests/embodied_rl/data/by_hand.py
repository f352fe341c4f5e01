"""LeRobot data sets with odd properties, of v3.0 and v2.1, written without the project's writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_rl.types import Array

STEP = 5
"""Row r is a grey image of level r * STEP."""


@dataclass
class ByHand:
    """What `make` writes. tasks: of each frame, by episode (None: the first). sizes: height and width by camera.

    vectors: (state, action) of all frames, in place of drawn ones.
    """

    fps: float = 20
    lengths: Sequence[int] = (9, 7, 8)
    sizes: dict[str, tuple[int, int]] = field(default_factory=lambda: {"agentview": (64, 64), "wrist": (64, 64)})
    declared: list[int] | None = None
    kind: str = "video"
    instructions: Sequence[str] = ("pick up the soup can",)
    tasks: Sequence[Sequence[int]] | None = None
    actions: int = 7
    scale: float = 1.0
    gripper: Sequence[float] = (-1.0, 1.0)
    scalar: bool = False
    lists: bool = False
    dtype: str = "float32"
    encoder: dict[str, str] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)
    executed: bool = False
    vectors: tuple[Array, Array] | None = None


def make(root: Path, spec: ByHand | None = None, **changes: Any) -> Path:
    """Write a data set; `changes` are fields of ByHand."""
    spec = spec or ByHand(**changes)
    count, cameras = sum(spec.lengths), [f"observation.images.{name}" for name in spec.sizes]
    columns = _columns(spec)
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [1 if np.ndim(values) == 1 else np.shape(values)[1]], "names": None}
        for name, values in columns.items()
    }
    table = {name: _column(spec, name, values) for name, values in columns.items()}
    for camera, (height, width) in zip(cameras, spec.sizes.values(), strict=True):
        frames = np.empty((count, height, width, 3), np.uint8)
        frames[:] = (np.arange(count) * STEP).astype(np.uint8)[:, None, None, None]
        features[camera] = {"dtype": spec.kind, "shape": spec.declared or [height, width, 3], "names": None}
        if spec.kind == "video":
            _video(root / f"videos/{camera}/chunk-000/file-000.mp4", frames, spec)
        else:
            encoded = [{"bytes": cv2.imencode(".png", frame)[1].tobytes(), "path": None} for frame in frames]
            table[camera] = pa.array(encoded, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    info = {
        "codebase_version": "v3.0",
        "total_episodes": len(spec.lengths),
        "fps": spec.fps,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    for folder in ("data/chunk-000", "meta/episodes/chunk-000"):
        (root / folder).mkdir(parents=True)
    pq.write_table(pa.table(table | spec.columns), root / "data/chunk-000/file-000.parquet", row_group_size=10)
    pq.write_table(pa.Table.from_pylist(_episodes(spec, cameras)), root / "meta/episodes/chunk-000/file-000.parquet")
    tasks = {"task_index": range(len(spec.instructions)), "task": list(spec.instructions)}
    pq.write_table(pa.table(tasks), root / "meta/tasks.parquet")
    (root / "meta/info.json").write_text(json.dumps(info | spec.info))
    return root


def make_v21(root: Path, spec: ByHand) -> Path:
    """The same data set as LeRobot v2.1: a file an episode, JSON lines; of videos only."""
    count, cameras = sum(spec.lengths), [f"observation.images.{name}" for name in spec.sizes]
    columns, first = _columns(spec), 0
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [1 if np.ndim(values) == 1 else np.shape(values)[1]], "names": None}
        for name, values in columns.items()
    }
    frames = (np.arange(count) * STEP).astype(np.uint8)
    for e, length in enumerate(spec.lengths):
        rows = slice(first, first + length)
        (root / "data/chunk-000").mkdir(parents=True, exist_ok=True)
        table = {name: _column(spec, name, values[rows]) for name, values in columns.items()}
        pq.write_table(pa.table(table), root / f"data/chunk-000/episode_{e:06d}.parquet")
        for camera, (height, width) in zip(cameras, spec.sizes.values(), strict=True):
            features[camera] = {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channel"]}
            images = np.broadcast_to(frames[rows, None, None, None], (length, height, width, 3))
            _video(root / f"videos/chunk-000/{camera}/episode_{e:06d}.mp4", np.ascontiguousarray(images), spec)
        first += length
    info = {
        "codebase_version": "v2.1",
        "total_episodes": len(spec.lengths),
        "chunks_size": 1000,
        "fps": spec.fps,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": features,
    }
    (root / "meta").mkdir()
    (root / "meta/info.json").write_text(json.dumps(info | spec.info))
    episodes = [
        {"episode_index": e, "tasks": [spec.instructions[task] for task in dict.fromkeys(tasks)], "length": length}
        for e, (length, tasks) in enumerate(zip(spec.lengths, _tasks(spec), strict=True))
    ]
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))
    tasks = [{"task_index": number, "task": text} for number, text in enumerate(spec.instructions)]
    (root / "meta/tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks))
    return root


def _tasks(spec: ByHand) -> list[list[int]]:
    return [list(spec.tasks[e]) if spec.tasks else [0] * length for e, length in enumerate(spec.lengths)]


def _columns(spec: ByHand) -> dict[str, Array]:
    rng, count = np.random.default_rng(0), sum(spec.lengths)
    action = rng.uniform(-1, 1, (count, spec.actions)) * spec.scale
    action[:, -1] = np.resize(spec.gripper, count)
    frame = np.concatenate([np.arange(length) for length in spec.lengths])
    executed = {"executed_action": action} if spec.executed else {}
    state, action = spec.vectors or (rng.normal(size=(count, 8)), action)
    return {
        "action": action.astype(spec.dtype),
        **executed,
        "observation.state": state.astype(spec.dtype),
        "timestamp": (frame / spec.fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(len(spec.lengths)), spec.lengths),
        "index": np.arange(count),
        "task_index": np.concatenate(_tasks(spec)).astype(np.int64),
    }


def _column(spec: ByHand, name: str, values: Array) -> pa.Array:
    if values.ndim == 1 or (spec.scalar and values.shape[1] == 1):
        return pa.array(values.ravel())
    if spec.lists:
        return pa.array(values.tolist(), pa.list_(pa.from_numpy_dtype(values.dtype)))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def _episodes(spec: ByHand, cameras: Sequence[str]) -> list[dict[str, Any]]:
    rows, first = [], 0
    for e, (length, tasks) in enumerate(zip(spec.lengths, _tasks(spec), strict=True)):
        row: dict[str, Any] = {"episode_index": e, "length": length, "data/chunk_index": 0, "data/file_index": 0}
        row["tasks"] = [spec.instructions[task] for task in dict.fromkeys(tasks)]
        for camera in cameras if spec.kind == "video" else ():
            times = {"from_timestamp": first / spec.fps, "to_timestamp": (first + length) / spec.fps}
            row |= {f"videos/{camera}/{name}": value for name, value in times.items()}
            row |= {f"videos/{camera}/chunk_index": 0, f"videos/{camera}/file_index": 0}
        rows.append(row | spec.rows)
        first += length
    return rows


def _video(path: Path, frames: Array, spec: ByHand) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=Fraction(spec.fps).limit_denominator(100_000))
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        stream.options = {"crf": "10", "g": "4", "bf": "0"} | spec.encoder
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
