"""The LeRobot v3.0 dataset layout: names, schema and reader. `embodied_rl.data.writer` writes it.

    meta/info.json                                   features, fps, totals, path templates
    meta/stats.json                                  statistics per feature
    meta/tasks.parquet                               task_index, indexed by the instruction
    meta/episodes/chunk-000/file-000.parquet         one row an episode: length, rows, files, video times, statistics
    data/chunk-000/file-000.parquet                  one row a frame, one row group an episode
    videos/<camera feature>/chunk-000/file-000.mp4   frames of several episodes, one after the other

What LeRobot does not define stands under the key `embodied_rl` of info.json and in episode columns `embodied_rl/...`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_rl.data import video
from embodied_rl.errors import UserError
from embodied_rl.types import Array

VERSION = "v3.0"
CHUNK_FILES = 1000
DATA_FILE_MB = 100
VIDEO_FILE_MB = 200
INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
STATE, ACTION, EXECUTED = "observation.state", "action", "executed_action"
NAMESPACE = "embodied_rl"


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """What every frame of a dataset holds. cameras: in the order of axis V; image_size: H = W in pixels; fps: Hz."""

    cameras: tuple[str, ...]
    image_size: int
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    fps: int = 20
    robot_type: str = "panda"

    def features(self) -> dict[str, dict[str, Any]]:
        """The `features` of info.json, without the video blocks that are known only once a video is written."""
        size = [self.image_size, self.image_size, 3]
        images = {
            camera_key(camera): {"dtype": "video", "shape": size, "names": ["height", "width", "channels"]}
            for camera in self.cameras
        }
        actions = {"dtype": "float32", "shape": [len(self.action_names)], "names": list(self.action_names)}
        state = {"dtype": "float32", "shape": [len(self.state_names)], "names": list(self.state_names)}
        scalars = {
            name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
            for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
        }
        return images | {STATE: state, ACTION: actions, EXECUTED: dict(actions)} | scalars


@dataclass(slots=True)
class Episode:
    """One demonstration of T frames.

    key: number in the plan that produced it; it fixes the order in the dataset. instruction: the language task.
    images uint8 [T,V,H,W,3]; state float32 [T,P]; action float32 [T,A], what the policy should learn;
    executed float32 [T,A], what the simulator was given. extra: values for the columns `embodied_rl/<name>`.
    """

    key: int
    instruction: str
    images: Array
    state: Array
    action: Array
    executed: Array
    extra: dict[str, str | int | float] = field(default_factory=dict)

    def check(self, spec: DatasetSpec) -> None:
        """Raise ValueError unless shapes and types are those of `spec` and all numbers are finite."""
        t = len(self.images)
        size = spec.image_size
        expected = {
            "images": (self.images, np.uint8, (t, len(spec.cameras), size, size, 3)),
            "state": (self.state, np.float32, (t, len(spec.state_names))),
            "action": (self.action, np.float32, (t, len(spec.action_names))),
            "executed": (self.executed, np.float32, (t, len(spec.action_names))),
        }
        for name, (value, dtype, shape) in expected.items():
            if value.dtype != dtype or value.shape != shape or t == 0:
                raise ValueError(f"episode {self.key}: {name} must be {dtype} {shape}, got {value.dtype} {value.shape}")
            if not np.isfinite(value).all():
                raise ValueError(f"episode {self.key}: {name} has non-finite values")


@dataclass(slots=True)
class Demonstrations:
    """A whole dataset in memory; F frames in all, E episodes, contiguous and in order.

    images uint8 [F,V,H,W,3]; state float32 [F,P]; action float32 [F,A]; pushed bool [F]: what was executed is not
    `action` (False throughout where the dataset does not say what was executed); starts int64 [E+1]: episode e is rows
    starts[e]:starts[e+1]; instruction: E strings; cameras: V feature names; info: meta/info.json; root: its folder.
    """

    images: Array
    state: Array
    action: Array
    pushed: Array
    starts: Array
    instruction: list[str]
    cameras: tuple[str, ...]
    info: dict[str, Any]
    root: Path

    def __len__(self) -> int:
        return len(self.starts) - 1


def camera_key(camera: str) -> str:
    """Feature name of a camera."""
    return f"observation.images.{camera}"


def load_info(root: Path) -> dict[str, Any]:
    """Read meta/info.json; raise UserError when `root` is no finished LeRobot v3 dataset."""
    path = root / INFO_PATH
    if not path.is_file():
        partial = partial_path(root)
        if partial.exists():
            raise UserError(f"{root} is not finished ({partial} is what a stopped collection left); run it again")
        raise UserError(f"{root} is no LeRobot dataset (no {INFO_PATH}); make one with `embodied-rl collect`")
    try:
        info = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged ({error}); collect the dataset again") from error
    if info.get("codebase_version") != VERSION:
        raise UserError(f"{root} is LeRobot {info.get('codebase_version')}; this reads {VERSION}, convert it first")
    return info


def partial_path(root: Path) -> Path:
    """Where a dataset stands until it is complete."""
    return root.with_name(root.name + ".partial")


def load(root: Path) -> Demonstrations:
    """Read a LeRobot v3 dataset into memory, cameras in the order of info.json, one thread a camera.

    Raises UserError for a missing, unfinished or damaged dataset.
    """
    root = Path(root)
    info = load_info(root)
    features = info["features"]
    cameras = tuple(name for name, feature in features.items() if feature["dtype"] == "video")
    for name in (STATE, ACTION):
        if name not in features:
            raise UserError(f"{root} has no feature '{name}'; it has {', '.join(features)}")
    episodes = _episode_rows(root, info)
    table = _table(root, info, episodes)
    starts = np.concatenate([[0], np.cumsum([row["length"] for row in episodes])]).astype(np.int64)
    if table.num_rows != starts[-1]:
        raise UserError(f"{root}: {table.num_rows} data rows, the episodes need {starts[-1]}; collect it again")
    shapes = {tuple(features[camera]["shape"]) for camera in cameras}
    if len(shapes) != 1:
        raise UserError(f"{root}: cameras must share one image shape, found {sorted(shapes)}")
    images = np.empty((starts[-1], len(cameras), *shapes.pop()), dtype=np.uint8)
    with ThreadPoolExecutor(len(cameras)) as pool:
        jobs = [
            pool.submit(_read_camera, root, info, episodes, starts, camera, images[:, v])
            for v, camera in enumerate(cameras)
        ]
        for job in jobs:
            job.result()
    return Demonstrations(
        images,
        _matrix(table, STATE),
        _matrix(table, ACTION),
        _pushed(table),
        starts,
        [row["tasks"][0] for row in episodes],
        cameras,
        info,
        root,
    )


def fingerprint(root: Path) -> str:
    """SHA-256 over names and contents of all files of a dataset: two datasets with equal fingerprints are the same."""
    digest = hashlib.sha256()
    for path in sorted(p for p in Path(root).rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        with path.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def _episode_rows(root: Path, info: dict[str, Any]) -> list[dict[str, Any]]:
    paths = sorted((root / "meta/episodes").glob("*/*.parquet"))
    rows: list[dict[str, Any]] = []
    for path in paths:
        names = [name for name in pq.read_schema(path).names if not name.startswith("stats/")]
        rows += pq.read_table(path, columns=names).to_pylist()
    rows.sort(key=lambda row: row["episode_index"])
    if len(rows) != info["total_episodes"] or not rows:
        raise UserError(f"{root}: {len(rows)} episodes, info.json says {info['total_episodes']}; collect it again")
    return rows


def _table(root: Path, info: dict[str, Any], episodes: Sequence[dict[str, Any]]) -> pa.Table:
    files = sorted({(row["data/chunk_index"], row["data/file_index"]) for row in episodes})
    columns = [STATE, ACTION, "index"] + [name for name in (EXECUTED,) if name in info["features"]]
    parts = []
    for chunk_index, file_index in files:
        path = root / info["data_path"].format(chunk_index=chunk_index, file_index=file_index)
        try:
            parts.append(pq.read_table(path, columns=columns))
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"cannot read {path} ({error}); the dataset is damaged, collect it again") from error
    return pa.concat_tables(parts).sort_by("index")


def _pushed(table: pa.Table) -> Array:
    if EXECUTED not in table.column_names:
        return np.zeros(table.num_rows, dtype=bool)
    return (_matrix(table, EXECUTED) != _matrix(table, ACTION)).any(axis=1)


def _matrix(table: pa.Table, name: str) -> Array:
    column = table.column(name).combine_chunks()
    return np.ascontiguousarray(column.flatten().to_numpy().reshape(len(column), -1), dtype=np.float32)


def _read_camera(
    root: Path, info: dict[str, Any], episodes: Sequence[dict[str, Any]], starts: Array, camera: str, out: Array
) -> None:
    """Fill `out` [F,H,W,3], a view of the images of one camera."""
    fps = int(info["fps"])
    files: dict[tuple[int, int], list[int]] = {}
    for e, row in enumerate(episodes):
        files.setdefault((row[f"videos/{camera}/chunk_index"], row[f"videos/{camera}/file_index"]), []).append(e)
    for (chunk_index, file_index), members in files.items():
        path = root / info["video_path"].format(video_key=camera, chunk_index=chunk_index, file_index=file_index)
        rows: dict[int, int] = {}
        for e in members:
            first = round(episodes[e][f"videos/{camera}/from_timestamp"] * fps)
            rows |= {first + t: int(starts[e]) + t for t in range(int(episodes[e]["length"]))}
        for number, image in video.frames(path, fps):
            row = rows.pop(number, None)
            if row is not None:
                out[row] = image
        if rows:
            raise UserError(f"{path} lacks {len(rows)} frames; the dataset is damaged, collect it again")
