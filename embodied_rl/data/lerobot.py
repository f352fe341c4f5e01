"""Read a LeRobot data set: numbers into memory, images when they are asked for.

`layout` describes the files of v3.0, `v21` those of v2.0 and v2.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_rl.data.columns import STEP_COLUMNS, StepColumns, step_columns
from embodied_rl.data.frames import Frames, ImageFit, join_frames, open_frames
from embodied_rl.data.layout import ACTION, EXECUTED, FOLDERS, NAMESPACE, STATE
from embodied_rl.data.metadata import Metadata, one_line, read_metadata, short_name
from embodied_rl.errors import UserError
from embodied_rl.types import Array
from embodied_rl.utils.words import counted

_FILE, _ROW = "file", "row in its file"


@dataclass(slots=True)
class Demonstrations:
    """A data set of F frames in E episodes, contiguous and in order.

    images: uint8 [F,V,H,W,3], an array or what reads as one by rows. state float32 [F,P]; action float32 [F,A]; pushed
    bool [F]: what was executed is not `action` (False throughout where the data set does not say what was executed).
    starts int64 [E+1]: episode e is rows starts[e]:starts[e+1]. success bool [E]: it ends in success (False where
    nobody says so). instruction: F strings, one a frame. cameras: V feature names, in the order of axis V. info:
    meta/info.json. root: the folder. no_cameras: pictures that are no colour camera's, and why. own_units: actions are
    as the robot takes them, such as joint angles, with no gripper in [-1, 1] at their end. columns: rewards, ends,
    decisions and who acted, neutral where the data set does not say. judged bool [E]: it is known whether it ends in
    success (True for successes alone where the data set does not say).
    """

    images: Array | Frames
    state: Array
    action: Array
    pushed: Array
    starts: Array
    success: Array
    instruction: list[str]
    cameras: tuple[str, ...]
    info: dict[str, Any]
    root: Path
    no_cameras: Mapping[str, str] = field(default_factory=dict)
    own_units: bool = False
    columns: StepColumns = field(default=cast("StepColumns", None))
    judged: Array = field(default=cast("Array", None))

    def __post_init__(self) -> None:
        if self.columns is None:
            self.columns = step_columns(pa.table({}), self.starts, self.success)
        if self.judged is None:
            self.judged = self.success

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def source(self) -> dict[str, Any]:
        """What `collect` recorded about itself; empty for a data set from elsewhere."""
        return self.info.get(NAMESPACE, {})

    @property
    def is_demonstrated(self) -> bool:
        """Whether it is for imitation as a whole; else it is what `export` writes: attempts, failures among them."""
        return not self.source or "expert" in self.source

    @property
    def camera_names(self) -> list[str]:
        """The cameras without 'observation.images.'."""
        return [short_name(camera) for camera in self.cameras]


def load(root: Path, cameras: Sequence[str] = (), fit: ImageFit | None = None) -> Demonstrations:
    """Read a LeRobot data set; images are found and checked for completeness, and decoded later.

    Args:
        root: its folder.
        cameras: those to read, in this order, by name with or without 'observation.images.' (none: all, as info.json
            lists them, but those of `not_colour`).
        fit: what is made of each image; None: they are as they come, all of one size.

    Raises:
        UserError: a missing, unfinished or damaged data set, or numbers in it that are not finite.
    """
    root = Path(root)
    with one_line(root):
        meta = read_metadata(root, cameras)
        lengths = [episode.length for episode in meta.episodes]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        table = _table(meta)
        if table.num_rows != starts[-1]:
            raise UserError(f"{root}: {table.num_rows} data rows, the episodes need {starts[-1]}; collect it again")
        _check_order(meta, table, lengths)
        state, action = (_vectors(meta, table, name) for name in (STATE, ACTION))
        pushed = np.zeros(len(action), bool)
        if EXECUTED in table.column_names:
            executed = _vectors(meta, table, EXECUTED)
            if executed.shape != action.shape:
                raise UserError(f"{root}: '{EXECUTED}' has {executed.shape[1]} numbers, '{ACTION}' {action.shape[1]}")
            pushed = (executed != action).any(axis=1)
        images = open_frames(meta, _times(meta, table, lengths), starts, table[_ROW].to_numpy(), fit)
        words = _instructions(meta, table, starts)
        stamp = meta.info.get(NAMESPACE, {})
        # `collect` keeps no others unless told, or where tasks report none.
        kept_for_success = "expert" in stamp and stamp.get("keep") != "all" and stamp.get("has_success", True)
        success = np.array([kept_for_success or episode.success for episode in meta.episodes])
        judged = np.array([kept_for_success or episode.judged for episode in meta.episodes])
        return Demonstrations(
            images,
            state,
            action,
            pushed,
            starts,
            success,
            words,
            meta.cameras,
            meta.info,
            root,
            meta.no_cameras,
            columns=step_columns(table, starts, success),
            judged=judged,
        )


def join(sets: Sequence[Demonstrations]) -> Demonstrations:
    """Data sets of one robot as one, in their order; what is not of single frames is as in the first."""
    first = sets[0]
    if len(sets) == 1:
        return first
    images = [data.images for data in sets]
    videos = [part for part in images if isinstance(part, Frames)]
    offsets = np.cumsum([0, *(len(data.state) for data in sets)])
    parts = {
        name: np.concatenate([getattr(data, name) for data in sets])
        for name in ("state", "action", "pushed", "success", "judged")
    }
    columns = {
        item.name: np.concatenate([getattr(data.columns, item.name) for data in sets]) for item in fields(StepColumns)
    }
    return replace(
        first,
        images=join_frames(videos) if len(videos) == len(sets) else np.concatenate([part[:] for part in images]),
        starts=np.append(np.concatenate([d.starts[:-1] + n for d, n in zip(sets, offsets, strict=False)]), offsets[-1]),
        instruction=[word for data in sets for word in data.instruction],
        columns=StepColumns(**columns),
        **parts,
    )


def fingerprint(root: Path) -> str:
    """SHA-256 over names and contents of all files of a dataset: two datasets with equal fingerprints are the same.

    A card beside its folders is no part of it.
    """
    digest = hashlib.sha256()
    for path in sorted(p for part in FOLDERS for p in (Path(root) / part).rglob("*") if p.is_file()):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        with path.open("rb") as handle:
            digest.update(hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def _table(meta: Metadata) -> pa.Table:
    """The rows of all data files without images, by episode and frame, each with its file and its row there."""
    wanted = [STATE, ACTION, EXECUTED, "episode_index", "frame_index", "task_index", "timestamp", *STEP_COLUMNS]
    parts = []
    for number, place in enumerate(sorted({episode.data for episode in meta.episodes})):
        path = meta.file("data_path", place)
        try:
            present = pq.read_schema(path).names
            part = pq.read_table(path, columns=[name for name in wanted if name in present])
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"cannot read {path} ({error}); the dataset is damaged, collect it again") from error
        for name in (STATE, ACTION, "episode_index", "frame_index", "task_index"):
            if name not in present:
                raise UserError(f"{path} has no column '{name}'; it has {', '.join(present)}")
        part = part.append_column(_FILE, pa.array(np.full(part.num_rows, number)))
        parts.append(part.append_column(_ROW, pa.array(np.arange(part.num_rows))))
    return pa.concat_tables(parts).sort_by([("episode_index", "ascending"), ("frame_index", "ascending")])


def _check_order(meta: Metadata, table: pa.Table, lengths: Sequence[int]) -> None:
    """Each episode must have its frames 0, 1, ... once, in the file that meta/episodes names."""
    files = sorted({episode.data for episode in meta.episodes})
    expected = {
        "episode_index": np.repeat([episode.index for episode in meta.episodes], lengths),
        "frame_index": np.concatenate([np.arange(length) for length in lengths]),
        _FILE: np.repeat([files.index(episode.data) for episode in meta.episodes], lengths),
    }
    for name, values in expected.items():
        wrong = np.flatnonzero(_numbers(meta, table, name) != values)
        if len(wrong):
            raise UserError(
                f"{meta.root}: data and meta/episodes differ in {name}, frame {expected['frame_index'][wrong[0]]} of "
                f"episode {expected['episode_index'][wrong[0]]}; collect or download it again"
            )


def _numbers(meta: Metadata, table: pa.Table, name: str) -> Array:
    """A column of plain numbers, also when each is a list of one; none may be missing."""
    values = _matrix(meta, table, name)
    if values.shape[1] != 1:
        raise UserError(f"{meta.root}: '{name}' must be one number a row, found {values.shape[1]}")
    return values[:, 0]


def _times(meta: Metadata, table: pa.Table, lengths: Sequence[int]) -> Array:
    """float64 [F]: seconds since the episode began, as the data says, else by frame number."""
    if "timestamp" not in table.column_names:
        return np.concatenate([np.arange(length) for length in lengths]) / meta.fps
    return _numbers(meta, table, "timestamp").astype(np.float64)


def _instructions(meta: Metadata, table: pa.Table, starts: Array) -> list[str]:
    """The instruction of each frame, from its task_index."""
    numbers = _numbers(meta, table, "task_index").tolist()
    unknown = sorted(set(numbers) - set(meta.tasks))
    if unknown:
        raise UserError(f"{meta.root}: task_index {unknown[0]} of the data is not in meta/tasks.parquet")
    words = [meta.tasks[number] for number in numbers]
    for e, episode in enumerate(meta.episodes):
        extra = set(words[starts[e] : starts[e + 1]]) - set(episode.tasks)
        if episode.tasks and extra:
            raise UserError(
                f"{meta.root}: episode {episode.index} has frames of the task '{min(extra)}', which is not among its "
                "tasks in meta/episodes: correct the one that is wrong"
            )
    return words


def _vectors(meta: Metadata, table: pa.Table, name: str) -> Array:
    """float32 [F,d] of a column of numbers or of lists of numbers; UserError unless all are finite."""
    with np.errstate(over="ignore"):  # what is too large is infinite, which is refused
        values = np.array(_matrix(meta, table, name), dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if len(bad):
        episode, frame = (int(_numbers(meta, table, column)[bad[0]]) for column in ("episode_index", "frame_index"))
        raise UserError(
            f"{meta.root}: '{name}' is not finite in {counted(len(bad), 'frame')}, first in frame {frame} of episode "
            f"{episode}: correct them or leave those episodes out"
        )
    declared = meta.info["features"].get(name, {}).get("shape")
    if declared is not None and declared not in ([values.shape[1]], (values.shape[1],)):
        raise UserError(f"{meta.root}: '{name}' has {values.shape[1]} numbers a frame, info.json says {declared}")
    return values


def _matrix(meta: Metadata, table: pa.Table, name: str) -> Array:
    column = table.column(name).combine_chunks()
    kind, count = column.type, len(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values, kind = column.flatten(), column.type.value_type
        width = len(values) // count if count else 0
        lengths = column.value_lengths() if count and not pa.types.is_fixed_size_list(column.type) else None
        if lengths is not None and (lengths.null_count or (lengths.to_numpy(zero_copy_only=False) != width).any()):
            raise UserError(f"{meta.root}: '{name}' has rows of different lengths")
    else:
        values, width = column, 1
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)) or width == 0:
        raise UserError(f"{meta.root}: '{name}' must hold numbers or lists of numbers, not {column.type}")
    if column.null_count or values.null_count:
        raise UserError(f"{meta.root}: '{name}' lacks numbers in some rows; collect or download it again")
    return values.to_numpy(zero_copy_only=False).reshape(count, width)
