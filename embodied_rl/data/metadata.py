"""The metadata of a LeRobot data set, read strictly: what is used is checked, and nothing outside is opened."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from string import Formatter
from typing import Any, TypeGuard

import av.error
import pyarrow as pa
import pyarrow.parquet as pq

from embodied_rl.data import layout, v21
from embodied_rl.errors import UserError, refuse_twice, suggest

Place = tuple[int, int]
"""Chunk index and file index of a file."""
_MAX_FPS = 10_000
_DEPTH = "depth map"
_NOT_COLOUR = re.compile(
    "(?<![a-z])(depth|disparity|flow|infrared|ir|instance|mask|normals|seg|segmentation|thermal)(?![a-z])"
)
"""Words in the names of pictures that are no colour camera's, where nothing else says what they are."""
_PLACEHOLDERS = {
    layout.VERSION: ("video_key", "chunk_index", "file_index"),
    **dict.fromkeys(v21.VERSIONS, ("video_key", "episode_chunk", "episode_index")),
}


@dataclass(frozen=True, slots=True)
class VideoSpan:
    """Where an episode stands in a video: its file, and its first and last moment there in seconds."""

    place: Place
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class EpisodeMeta:
    """A row of meta/episodes. length: frames, at least 1. videos: by camera feature; images are beside the numbers.

    success: whether it ends in one; False where nobody says so. judged: whether it is known to end so, or in failure.
    """

    index: int
    length: int
    tasks: tuple[str, ...]
    data: Place
    videos: Mapping[str, VideoSpan]
    success: bool = False
    judged: bool = False


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the folder `meta` says.

    fps: frames a second, may be a fraction. cameras: feature names, in the order that was asked for. no_cameras: the
    pictures that are none, and why. tasks: instruction by task_index. episodes: in order, without empty ones.
    """

    root: Path
    info: dict[str, Any]
    fps: float
    cameras: tuple[str, ...]
    no_cameras: Mapping[str, str]
    tasks: Mapping[int, str]
    episodes: Sequence[EpisodeMeta]

    def file(self, kind: str, place: Place, camera: str = "") -> Path:
        """The file of `data_path` or `video_path` (`kind`) at `place`; UserError when it lies outside the data set."""
        template, known = self.info.get(kind), _PLACEHOLDERS[self.info["codebase_version"]]
        if not isinstance(template, str) or not all(
            name is None or (name in known and _is_plain(spec, how))
            for _, name, spec, how in Formatter().parse(template)
        ):
            raise UserError(f"{self.root}: {kind} {_short(template)} is no path with {', '.join(known)}")
        path = PurePosixPath(template.format(**dict(zip(known, (camera, *place), strict=True))))
        if path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise UserError(f"{self.root}: {kind} leads out of the data set ({_short(str(path))})")
        return self.root / path

    def feature(self, name: str) -> Mapping[str, Any]:
        """The entry of a feature in info.json."""
        return self.info["features"][name]


@contextmanager
def one_line(root: Path) -> Iterator[None]:
    """Turn what damaged files make their libraries raise into one UserError line that names the data set."""
    try:
        yield
    except UserError:
        raise
    except (
        *(OSError, EOFError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError),
        *(AttributeError, pa.ArrowException, av.error.FFmpegError),
    ) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{root} is damaged ({reason[:300]}); collect or download it again") from error


def read_metadata(root: Path, cameras: Sequence[str] = ()) -> Metadata:
    """Read the folder `meta` of the data set `root`.

    Args:
        root: folder of the data set.
        cameras: those to read, in this order, with or without 'observation.images.'; none given: all, as info.json
            lists them, but those of `not_colour`.

    Raises:
        UserError: a missing, unfinished or damaged data set, or one whose entries contradict each other.
    """
    info = load_info(root)
    fps = info.get("fps")
    if not _is_number(fps) or not 0 < fps <= _MAX_FPS:
        raise UserError(f"{root}: fps must be a number above 0, info.json has {_short(fps)}")
    features = info.get("features")
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise UserError(f"{root}: features in info.json must be an object of objects")
    for name in (layout.STATE, layout.ACTION):
        if name not in features:
            raise UserError(f"{root} has no feature '{name}'; it has {', '.join(features)}")
    pictures = {name: feature for name, feature in features.items() if feature.get("dtype") in ("video", "image")}
    no_cameras = {name: reason for name, feature in pictures.items() if (reason := not_colour(name, feature))}
    chosen = _choose(root, pictures, no_cameras, cameras)
    videos = [name for name in chosen if features[name]["dtype"] == "video"]
    old = info["codebase_version"] in v21.VERSIONS
    rows = v21.episode_rows(root, info, videos) if old else _episode_rows(root)
    if len(rows) != info.get("total_episodes"):
        raise UserError(f"{root}: {len(rows)} episodes, info.json says {_short(info.get('total_episodes'))}")
    episodes = sorted((_episode(root, row, videos) for row in rows), key=lambda episode: episode.index)
    if len({episode.index for episode in episodes}) != len(episodes):
        raise UserError(f"{root}: two episodes in meta/episodes have one episode_index")
    filled = [episode for episode in episodes if episode.length]
    if not filled:
        raise UserError(f"{root} has no frames: collect or download it again")
    left_out = {name: reason for name, reason in no_cameras.items() if name not in chosen}
    return Metadata(root, info, float(fps), chosen, left_out, _tasks(root, old=old), filled)


def load_info(root: Path) -> dict[str, Any]:
    """Read meta/info.json; raise UserError when `root` is no finished LeRobot data set."""
    path = root / layout.INFO_PATH
    if not path.is_file():
        partial = layout.partial_path(root)
        if partial.exists():
            raise UserError(f"{root} is not finished ({partial} is what a stopped collection left); run it again")
        raise UserError(f"{root} is no LeRobot dataset (no {layout.INFO_PATH}); make one with `embodied-rl collect`")
    try:
        info = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({' '.join(str(error).split())}); collect the dataset again") from error
    if not isinstance(info, dict):
        raise UserError(f"{path} must hold a JSON object; collect the dataset again")
    if info.get("codebase_version") not in _PLACEHOLDERS:
        found = _short(info.get("codebase_version"))
        raise UserError(f"{root} is LeRobot {found}; this reads {', '.join(_PLACEHOLDERS)}, convert it first")
    if not isinstance(info.get(layout.NAMESPACE, {}), dict):
        raise UserError(f"{path}: '{layout.NAMESPACE}' must be an object; collect the dataset again")
    return info


def image_size(root: Path, camera: str, feature: Mapping[str, Any]) -> tuple[int, int]:
    """Height and width that info.json declares for a camera, whose shape may be [H, W, 3] or [3, H, W]."""
    shape, names = feature.get("shape"), feature.get("names")
    if not isinstance(shape, list) or len(shape) != 3 or not all(type(n) is int and n > 0 for n in shape):
        raise UserError(f"{root}: the shape of {camera} must be three positive numbers, info.json has {_short(shape)}")
    axes = [name[:1] for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if sorted(axes) != ["c", "h", "w"]:
        axes = ["c", "h", "w"] if shape[0] == 3 and shape[2] != 3 else ["h", "w", "c"]
    size = dict(zip(axes, shape, strict=True))
    if size["c"] != 3:
        raise UserError(f"{root}: {camera} has {size['c']} channels, not 3: leave it out with --cameras")
    return size["h"], size["w"]


def describe_left_out(no_cameras: Mapping[str, str]) -> str:
    """The pictures that are no camera's, in words."""
    return ", ".join(f"{short_name(name)} ({reason})" for name, reason in no_cameras.items())


def short_name(camera: str) -> str:
    """A camera's feature name without 'observation.images.'."""
    return camera.removeprefix(layout.CAMERA_PREFIX)


def not_colour(name: str, feature: Mapping[str, Any]) -> str:
    """Why pictures are no colour camera's, by what info.json says of them, else by their name; '' where they are."""
    places = [part for part in (feature, feature.get("info"), feature.get("video_info")) if isinstance(part, dict)]

    def said(key: str) -> list[Any]:
        return [place[name] for place in places for name in (key, f"video.{key}") if name in place]

    if True in said("is_depth_map"):
        return _DEPTH
    shape = feature.get("shape")
    if any(count == 1 for count in said("channels")) or (
        isinstance(shape, list | tuple) and 1 in (*shape[:1], *shape[2:])
    ):
        return "one channel"
    if any(isinstance(form, str) and form.startswith("gray") for form in said("pix_fmt")):
        return "one channel"
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", short_name(name)).lower()  # 'topDepth' is two
    word = _NOT_COLOUR.search(words)
    return f"by its name: {word[1]}" if word else ""


def _choose(
    root: Path, found: Mapping[str, Any], no_cameras: Mapping[str, str], wanted: Sequence[str]
) -> tuple[str, ...]:
    if not found:
        raise UserError(f"{root} has no cameras: no feature of dtype video or image")
    by_name = {short_name(name): name for name in found} | {name: name for name in found}
    for name in wanted:
        if name not in by_name:
            raise UserError(f"{root} has no camera '{name}'.{suggest(name, map(short_name, found))}")
    chosen = tuple(by_name[name] for name in wanted) or tuple(name for name in found if name not in no_cameras)
    if not chosen:
        raise UserError(f"{root} has no colour camera: {describe_left_out(no_cameras)}")
    for name in chosen:
        if no_cameras.get(name) == _DEPTH:
            raise UserError(f"{root}: {short_name(name)} is a depth map, no colour camera: name others with --cameras")
    refuse_twice([short_name(name) for name in chosen], "camera")
    return chosen


def _episode_rows(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted((root / "meta/episodes").glob("*/*.parquet")):
        names = [name for name in pq.read_schema(path).names if not name.startswith("stats/")]
        rows += pq.read_table(path, columns=names).to_pylist()
    return rows


def _episode(root: Path, row: Mapping[str, Any], videos: Sequence[str]) -> EpisodeMeta:
    where = f"{root}: episode {_short(row.get('episode_index'))}"

    def whole(name: str) -> int:
        value = row.get(name)
        if type(value) is not int or not 0 <= value < 2**40:
            raise UserError(f"{where}: {name} in meta/episodes must be a whole number, got {_short(value)}")
        return value

    def moment(name: str) -> float:
        value = row.get(name)
        if not _is_number(value) or value < 0:
            raise UserError(f"{where}: {name} in meta/episodes must be a time in seconds, got {_short(value)}")
        return float(value)

    def place(prefix: str) -> Place:
        return whole(f"{prefix}/chunk_index"), whole(f"{prefix}/file_index")

    tasks = row.get("tasks") or []
    if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
        raise UserError(f"{where}: tasks in meta/episodes must be texts, got {_short(tasks)}")
    index, length = whole("episode_index"), whole("length")
    if length == 0:
        return EpisodeMeta(index, 0, (), (0, 0), {})
    spans = {
        camera: VideoSpan(
            place(f"videos/{camera}"),
            moment(f"videos/{camera}/from_timestamp"),
            moment(f"videos/{camera}/to_timestamp"),
        )
        for camera in videos
    }
    success = row.get(f"{layout.NAMESPACE}/{layout.ENDS_IN_SUCCESS}") == 1
    failed = row.get(f"{layout.NAMESPACE}/success") == 0  # part of a success, before a hold: neither
    return EpisodeMeta(index, length, tuple(tasks), place("data"), spans, success, success or failed)


def _tasks(root: Path, *, old: bool) -> dict[int, str]:
    """Instruction by task_index."""
    path = root / (v21.TASKS_PATH if old else layout.TASKS_PATH)
    rows = v21.task_rows(root) if old else _task_rows(path)
    for number, text in rows:
        if type(number) is not int or not isinstance(text, str) or not text.strip():
            raise UserError(f"{path}: task {_short(number)} has no text: a policy needs an instruction")
    if len(dict(rows)) != len(rows):
        raise UserError(f"{path}: two tasks have one task_index")
    return dict(rows)


def _task_rows(path: Path) -> list[tuple[Any, Any]]:
    """Numbers and texts of the tasks; pandas writes the text as an index, which may have no name."""
    table = pq.read_table(path) if path.is_file() else None
    texts = [name for name in table.column_names if name != "task_index"] if table is not None else []
    name = "task" if "task" in texts else texts[0] if len(texts) == 1 else None
    if table is None or name is None or "task_index" not in table.column_names:
        raise UserError(f"{path} must have the columns task_index and task: collect or download the data set again")
    return list(zip(table["task_index"].to_pylist(), table[name].to_pylist(), strict=True))


def _is_plain(spec: str | None, conversion: str | None) -> bool:
    return conversion is None and re.fullmatch(r"0?\d?d?", spec or "") is not None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:77] + "..."
