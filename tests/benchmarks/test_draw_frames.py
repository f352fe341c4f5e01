"""What `bench draw --suites` takes over from a stopped run, and what not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from embodied_rl.benchmarks.draw_frames import Row, read_kept
from embodied_rl.errors import UserError

STAMP = {"machine": {"cpu": "a"}, "simulator": "1", "bundles": "2", "kinds": ["plain", "fast"]}
ROWS = [Row("libero_goal/a", size, "fast", 1.0, 30.0, 2.0) for size in (64, 128)]


def _kept(folder: Path, stamp: dict[str, object] = STAMP, tail: str = "") -> Path:
    path = folder / "draw.tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (stamp, [asdict(row) for row in ROWS])) + tail)
    return path


def test_a_stopped_run_is_continued(tmp_path: Path) -> None:
    assert read_kept(tmp_path / "none", STAMP) == {}
    assert read_kept(_kept(tmp_path), STAMP) == {"libero_goal/a": ROWS}
    assert read_kept(_kept(tmp_path, tail='[{"task": "libero_goal/b", "si'), STAMP) == {"libero_goal/a": ROWS}


@pytest.mark.parametrize("key", STAMP)
def test_figures_of_anything_else_are_not_taken_over(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match="measured on another machine or simulator"):
        read_kept(_kept(tmp_path, {**STAMP, key: "other"}), STAMP)


@pytest.mark.parametrize("line", ["{", "[]", '[{"task": "a"}]', "3"])
def test_a_damaged_file_is_one_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match=r"is damaged .*; remove it") as error:
        read_kept(_kept(tmp_path, tail=line + "\n"), STAMP)
    assert "\n" not in str(error.value)
