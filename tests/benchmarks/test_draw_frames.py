"""What `bench draw --suites` takes over from a stopped run, and what not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from embodied_rl.benchmarks.draw_frames import KINDS, Row, comparison, read_kept, summary
from embodied_rl.errors import UserError

STAMP = {"machine": {"cpu": "a"}, "simulator": "1", "bundles": "2", "kinds": ["plain", "fast"]}
WORST = [("STUDY_SCENE1_pick_up", 30.0), ("STUDY_SCENE4_pick_up_the_book_on_the_left_and_place_it", 20.0)]
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
    with pytest.raises(UserError, match=rf"is of another run \(differs in: {key}\)"):
        read_kept(_kept(tmp_path, {**STAMP, key: "other"}), STAMP)


@pytest.mark.parametrize("line", ["{", "[]", '[{"task": "a"}]', "3"])
def test_a_damaged_file_is_one_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(UserError, match=r"is damaged .*; remove it") as error:
        read_kept(_kept(tmp_path, tail=line + "\n"), STAMP)
    assert "\n" not in str(error.value)


def test_the_line_below_the_table_names_the_worst_task_in_full_and_the_ratio_of_the_means() -> None:
    cost = {"plain": 30.0, "fast": 2.0}
    rows = [Row(f"libero_90/{name}", 64, kind, cost.get(kind, 9.0), dB, 1.0) for kind in KINDS for name, dB in WORST]
    line = comparison(summary(rows, "", 64), 64)
    assert line == (
        "at 64 pixels fast frames take 15.0 times less CPU than plain OSMesa, PSNR 25.00 against 25.00 dB; "
        f"worst: libero_90/{WORST[1][0]} (20.0 dB)"
    )


@pytest.mark.parametrize("first", ["[1]", "5"])
def test_a_first_line_that_is_no_stamp_is_one_line(tmp_path: Path, first: str) -> None:
    kept = tmp_path / "draw.tasks.jsonl"
    kept.write_text(first + "\n")
    with pytest.raises(UserError, match=r"is damaged .*; remove it"):
        read_kept(kept, STAMP)
    kept.write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"is damaged .*; remove it"):
        read_kept(kept, STAMP)
