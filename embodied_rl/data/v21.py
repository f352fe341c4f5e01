"""The metadata of LeRobot v2.0 and v2.1 as that of v3.0: one file an episode, lists in JSON lines.

meta/episodes.jsonl                              {"episode_index", "tasks", "length"}
meta/tasks.jsonl                                 {"task_index", "task"}
data/chunk-000/episode_000000.parquet            one row a frame
videos/chunk-000/<camera feature>/episode_000000.mp4
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError

VERSIONS = ("v2.0", "v2.1")
EPISODES_PATH, TASKS_PATH = "meta/episodes.jsonl", "meta/tasks.jsonl"
_CHUNK_EPISODES = 1000


def episode_rows(root: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[dict[str, Any]]:
    """Episodes as rows of v3.0's meta/episodes: an episode's files are numbered by it and hold it alone.

    Raises:
        UserError: The list is missing or damaged.
    """
    chunk, fps = info.get("chunks_size", _CHUNK_EPISODES), float(info["fps"])
    if type(chunk) is not int or chunk < 1:
        raise UserError(f"{root}: chunks_size in info.json must be a whole number above 0, got {chunk!r}")
    rows = []
    for line in _lines(root / EPISODES_PATH):
        index, length = line.get("episode_index"), line.get("length")
        if type(index) is not int or type(length) is not int:
            raise UserError(f"{root / EPISODES_PATH} has an episode without its number and length: download it again")
        place = {"chunk_index": index // chunk, "file_index": index}
        row = {**line, **{f"data/{name}": value for name, value in place.items()}}
        for camera in videos:
            span = {**place, "from_timestamp": 0.0, "to_timestamp": length / fps}
            row |= {f"videos/{camera}/{name}": value for name, value in span.items()}
        rows.append(row)
    return rows


def task_rows(root: Path) -> list[tuple[Any, Any]]:
    """Numbers and texts of the tasks."""
    return [(line.get("task_index"), line.get("task")) for line in _lines(root / TASKS_PATH)]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"{path} is missing: download the data set again")
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not all(isinstance(line, dict) for line in found):
        raise UserError(f"{path} must hold an object a line: download the data set again")
    return found
