"""The metrics file: readable lines, exact resume, nothing lost or doubled."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.telemetry.metrics import MetricsLog, read_metrics


def test_each_update_is_a_line(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.write(1, {"loss": 0.5, "success": 1})
        log.write(2, {"loss": -0.25})
    assert read_metrics(tmp_path / "m.jsonl") == [{"step": 1, "loss": 0.5, "success": 1.0}, {"step": 2, "loss": -0.25}]


def test_a_line_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "m.jsonl")
    log.write(1, {"loss": 0.5})
    assert (tmp_path / "m.jsonl").read_text() == '{"step": 1, "loss": 0.5}\n'
    log.close()


def test_non_finite_numbers_stay_valid_json(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.write(1, {"a": math.nan, "b": math.inf, "c": 1.0})
    strict = json.loads((tmp_path / "m.jsonl").read_text(), parse_constant=pytest.fail)
    assert strict == {"step": 1, "a": None, "b": None, "c": 1.0}


@given(before=st.integers(0, 5), lost=st.integers(0, 5), after=st.integers(0, 5), torn=st.booleans())
def test_resume_equals_an_unbroken_run(
    before: int, lost: int, after: int, torn: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever was written after the checkpoint, whole lines or half a line: it leaves no trace."""
    folder = tmp_path_factory.mktemp("run")
    with MetricsLog(folder / "whole.jsonl") as log:
        for step in range(before + after):
            log.write(step, {"loss": step / 3})
    log = MetricsLog(folder / "broken.jsonl")
    for step in range(before):
        log.write(step, {"loss": step / 3})
    position = log.position()
    for step in range(lost):
        log.write(1000 + step, {"loss": 9.0})
    log.close()
    if torn:
        with open(folder / "broken.jsonl", "ab") as file:
            file.write(b'{"step": 7, "lo')
    with MetricsLog(folder / "broken.jsonl") as log:
        log.rewind(position)
        for step in range(before, before + after):
            log.write(step, {"loss": step / 3})
    assert (folder / "broken.jsonl").read_bytes() == (folder / "whole.jsonl").read_bytes()


def test_a_file_shorter_than_the_checkpoint_says_is_refused(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.write(1, {"loss": 1.0})
        with pytest.raises(UserError, match=r"m\.jsonl is shorter"):
            log.rewind(log.position() + 1)


def test_reading_leaves_out_a_torn_last_line_but_not_a_bad_one(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "x')
    assert read_metrics(path) == [{"step": 1}]
    path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        read_metrics(path)
    with pytest.raises(UserError, match="cannot read"):
        read_metrics(tmp_path / "none.jsonl")
