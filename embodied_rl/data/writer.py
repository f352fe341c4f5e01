"""Write a LeRobot v3 dataset from many processes, so that a kill at any moment leaves nothing silently broken.

Worker processes add episodes to `<out>.partial/episodes/`, one finished file set each (`add_episode`); a collection
that is started again skips them. `finalize` joins them into `<out>.partial/dataset/` and renames that to `<out>` in one
step: a folder `<out>` exists only when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_rl.data import layout, video
from embodied_rl.data.layout import DatasetSpec, Episode
from embodied_rl.data.statistics import array_statistics, histogram, image_statistics
from embodied_rl.errors import UserError

Location = tuple[int, int]  # chunk index, file index


@dataclass(slots=True)
class Shard:
    """A stored episode. frames: its columns; head: key, instruction, extra, and image histograms [V, 3, 256]."""

    frames: pa.Table
    head: dict[str, Any]
    videos: list[Path]


def begin(out: Path, plan: dict[str, Any]) -> Path:
    """Create `<out>.partial` for `plan` (JSON values that decide what is collected) or continue the one that is there.

    Raises UserError when `out` exists already, or when the partial folder was begun with another plan.
    """
    if out.exists():
        raise UserError(f"{out} already exists; choose another --out or remove it")
    partial = layout.partial_path(out)
    (partial / "episodes").mkdir(parents=True, exist_ok=True)
    path = partial / "plan.json"
    if not path.exists():
        write_json(path, plan)
    elif json.loads(path.read_text()) != json.loads(json.dumps(plan)):
        raise UserError(f"{partial} was begun with other settings; remove it, or use the settings in {path}")
    return partial


def add_episode(partial: Path, spec: DatasetSpec, episode: Episode) -> None:
    """Store one episode; safe to call from several processes for different keys."""
    episode.check(spec)
    stem = partial / "episodes" / f"{episode.key:06d}"
    for v, camera in enumerate(spec.cameras):
        final = _shard_video(stem, camera)
        part = final.with_suffix(".part")
        video.write_lossless(part, episode.images[:, v], spec.fps)
        os.replace(part, final)
    head = {
        "key": episode.key,
        "instruction": episode.instruction,
        "extra": episode.extra,
        "histograms": [histogram(episode.images[:, v]).tolist() for v in range(len(spec.cameras))],
    }
    table = pa.table(
        {
            name: _fixed_list(value)
            for name, value in (
                (layout.STATE, episode.state),
                (layout.ACTION, episode.action),
                (layout.EXECUTED, episode.executed),
            )
        }
        | {name: pa.array(episode.columns[name]) for name in spec.columns}
    ).replace_schema_metadata({layout.NAMESPACE: json.dumps(head)})
    # The parquet file comes last: where it stands, the episode is whole.
    part = stem.with_suffix(".part")
    pq.write_table(table, part)
    os.replace(part, stem.with_suffix(".parquet"))


def add_failure(partial: Path, key: int, reason: str) -> None:
    """Note that the episode `key` was tried and is not to be kept; `begin` with the same plan will not try it again."""
    write_json(partial / "episodes" / f"{key:06d}.json", {"key": key, "reason": reason})


def stored(partial: Path) -> tuple[set[int], dict[int, str]]:
    """Keys of the episodes that are stored, and the reason of each failure."""
    folder = partial / "episodes"
    kept = {int(path.stem) for path in folder.glob("*.parquet")}
    failed = {int(path.stem): json.loads(path.read_text())["reason"] for path in folder.glob("*.json")}
    return kept, failed


def finalize(
    out: Path,
    spec: DatasetSpec,
    stamp: dict[str, Any],
    *,
    data_mb: float = layout.DATA_FILE_MB,
    video_mb: float = layout.VIDEO_FILE_MB,
) -> None:
    """Make `out` from the stored episodes, ordered by key, and remove the partial folder.

    stamp: JSON values for the key `embodied_rl` of info.json (what collected the data). data_mb, video_mb: size at
    which a new file begins. Raises UserError when nothing is stored.
    """
    partial = layout.partial_path(out)
    shards = load_shards(partial, spec)
    if not shards:
        raise UserError(f"no successful episode was collected for {out}")
    join_shards(out, spec, stamp, shards, (data_mb, video_mb))
    shutil.rmtree(partial)


def join_shards(
    out: Path,
    spec: DatasetSpec,
    stamp: dict[str, Any],
    shards: Sequence[Shard],
    sizes_mb: tuple[float, float] = (layout.DATA_FILE_MB, layout.VIDEO_FILE_MB),
) -> None:
    """Make `out` from at least one stored episode, which stay where they are; arguments as of `finalize`."""
    data_mb, video_mb = sizes_mb
    root = layout.partial_path(out) / "dataset"
    if root.exists():
        shutil.rmtree(root)  # a finalize that was killed
    tasks = list(dict.fromkeys(shard.head["instruction"] for shard in shards))
    rows = [_episode_row(e, shard) for e, shard in enumerate(shards)]
    tables = _write_data(root, spec, shards, rows, tasks, data_mb)
    for v, camera in enumerate(spec.cameras):
        _write_videos(root, spec, shards, rows, v, layout.camera_key(camera), video_mb)
    _write_meta(root, spec, shards, rows, tables, tasks, stamp, (data_mb, video_mb))
    _sync(root)
    os.rename(root, out)
    _sync_one(out.parent)


def load_shards(partial: Path, spec: DatasetSpec, keys: Collection[int] | None = None) -> list[Shard]:
    """The stored episodes in the order of their keys. keys: only these; None: all."""
    shards = []
    for path in sorted((partial / "episodes").glob("*.parquet"), key=lambda path: int(path.stem)):
        if keys is not None and int(path.stem) not in keys:
            continue
        table = pq.read_table(path)
        head = json.loads((table.schema.metadata or {})[layout.NAMESPACE.encode()])
        shards.append(Shard(table, head, [_shard_video(path.with_suffix(""), camera) for camera in spec.cameras]))
    return shards


def read_extra(partial: Path, key: int) -> dict[str, Any]:
    """What the stored episode `key` says of itself, without its frames."""
    schema = pq.read_schema(partial / "episodes" / f"{key:06d}.parquet")
    return json.loads((schema.metadata or {})[layout.NAMESPACE.encode()])["extra"]


def remove_episode(partial: Path, key: int) -> None:
    """Forget a stored episode; a kill in between leaves videos that belong to none."""
    (partial / "episodes" / f"{key:06d}.parquet").unlink(missing_ok=True)


def _episode_row(index: int, shard: Shard) -> dict[str, Any]:
    extra = {f"{layout.NAMESPACE}/{name}": value for name, value in shard.head["extra"].items()}
    return {"episode_index": index, "tasks": [shard.head["instruction"]], "length": shard.frames.num_rows} | extra


def _write_data(
    root: Path,
    spec: DatasetSpec,
    shards: Sequence[Shard],
    rows: Sequence[dict[str, Any]],
    tasks: Sequence[str],
    limit_mb: float,
) -> list[pa.Table]:
    """Write the frame tables and note their files and rows in `rows`; return the table of each episode."""
    tables, first = [], 0
    for e, shard in enumerate(shards):
        count = shard.frames.num_rows
        frame = np.arange(count, dtype=np.int64)
        table = shard.frames.replace_schema_metadata(None)
        for name, column in {
            "timestamp": (frame / spec.fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(count, e, dtype=np.int64),
            "index": first + frame,
            "task_index": np.full(count, tasks.index(shard.head["instruction"]), dtype=np.int64),
        }.items():
            table = table.append_column(name, pa.array(column))
        tables.append(table)
        rows[e].update({"dataset_from_index": first, "dataset_to_index": first + count})
        first += count
    for place, members in _pack([table.nbytes for table in tables], limit_mb):
        path = root / layout.DATA_PATH.format(chunk_index=place[0], file_index=place[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(path, tables[0].schema) as writer:
            for e in members:
                writer.write_table(tables[e])  # one row group an episode
                rows[e].update({"data/chunk_index": place[0], "data/file_index": place[1]})
    return tables


def _write_videos(
    root: Path,
    spec: DatasetSpec,
    shards: Sequence[Shard],
    rows: Sequence[dict[str, Any]],
    v: int,
    key: str,
    limit_mb: float,
) -> None:
    """Join the videos of camera `v` and note their files and times in `rows`."""
    for place, members in _pack([shard.videos[v].stat().st_size for shard in shards], limit_mb):
        path = root / layout.VIDEO_PATH.format(video_key=key, chunk_index=place[0], file_index=place[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        lengths = [shards[e].frames.num_rows for e in members]
        video.join([shards[e].videos[v] for e in members], lengths, path, spec.fps)
        first = 0
        for e, length in zip(members, lengths, strict=True):
            rows[e].update(
                {
                    f"videos/{key}/chunk_index": place[0],
                    f"videos/{key}/file_index": place[1],
                    f"videos/{key}/from_timestamp": first / spec.fps,
                    f"videos/{key}/to_timestamp": (first + length) / spec.fps,
                }
            )
            first += length


def _write_meta(
    root: Path,
    spec: DatasetSpec,
    shards: Sequence[Shard],
    rows: Sequence[dict[str, Any]],
    tables: Sequence[pa.Table],
    tasks: Sequence[str],
    stamp: dict[str, Any],
    sizes_mb: tuple[float, float],
) -> None:
    """Write everything under meta/; sizes_mb: at which data and video files end."""
    histograms = [np.array(shard.head["histograms"], dtype=np.int64) for shard in shards]
    for row, table, counts in zip(rows, tables, histograms, strict=True):
        for feature, values in _statistics(spec, table, counts).items():
            row.update({f"stats/{feature}/{name}": value for name, value in values.items()})
        row.update({"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
    episodes = root / layout.EPISODES_PATH.format(chunk_index=0, file_index=0)
    episodes.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), episodes)
    everything = pa.concat_tables(tables)
    write_json(root / layout.STATS_PATH, _statistics(spec, everything, np.sum(histograms, axis=0)))
    _write_tasks(root / layout.TASKS_PATH, tasks)
    features = spec.features()
    for camera in map(layout.camera_key, spec.cameras):
        first = layout.VIDEO_PATH.format(video_key=camera, chunk_index=0, file_index=0)
        features[camera]["info"] = video.describe(root / first)
    write_json(
        root / layout.INFO_PATH,
        {
            "codebase_version": layout.VERSION,
            "robot_type": spec.robot_type,
            "total_episodes": len(rows),
            "total_frames": everything.num_rows,
            "total_tasks": len(tasks),
            "chunks_size": layout.CHUNK_FILES,
            "data_files_size_in_mb": sizes_mb[0],
            "video_files_size_in_mb": sizes_mb[1],
            "fps": spec.fps,
            "splits": {"train": f"0:{len(rows)}"},
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH,
            "features": features,
            layout.NAMESPACE: stamp,
        },
    )


def _statistics(spec: DatasetSpec, table: pa.Table, histograms: np.ndarray) -> dict[str, dict[str, Any]]:
    stats: dict[str, dict[str, Any]] = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
        stats[name] = array_statistics(values.to_numpy(zero_copy_only=False).reshape(len(column), -1))
    for camera, counts in zip(spec.cameras, histograms, strict=True):
        stats[layout.camera_key(camera)] = image_statistics(counts, table.num_rows)
    return stats


def _write_tasks(path: Path, tasks: Sequence[str]) -> None:
    # Readers use pandas and expect the instruction to be the index; this metadata tells pandas so.
    pandas_schema = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy_kind, "metadata": None}
            for name, kind, numpy_kind in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
        ],
    }
    table = pa.table({"task_index": np.arange(len(tasks)), "task": pa.array(list(tasks), pa.string())})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas_schema)}), path)


def _pack(sizes: Sequence[int], limit_mb: float) -> list[tuple[Location, list[int]]]:
    """Split items, in order, into files of at most `limit_mb` (a larger item gets its own) and number the files."""
    files: list[list[int]] = []
    filled = 0.0
    for item, size in enumerate(sizes):
        if not files or filled + size > limit_mb * 1024**2:
            files.append([])
            filled = 0.0
        files[-1].append(item)
        filled += size
    return [(divmod(n, layout.CHUNK_FILES), members) for n, members in enumerate(files)]


def _fixed_list(values: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).ravel()), values.shape[1])


def _shard_video(stem: Path, camera: str) -> Path:
    return stem.with_name(f"{stem.name}.{camera}.mp4")


def write_json(path: Path, value: Any) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(part, path)


def _sync(root: Path) -> None:
    """Force files and folders to disk before the rename that makes them count."""
    for path in [*root.rglob("*"), root]:
        _sync_one(path)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
