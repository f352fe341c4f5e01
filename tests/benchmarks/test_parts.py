"""Parts of a bench: one that fails, hangs or is killed is named and costs neither the others nor its own rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from embodied_rl.benchmarks import parts
from embodied_rl.benchmarks.gpu_busy import covered, gpu_busy
from embodied_rl.benchmarks.parts import Part, choose, run_parts, serve
from embodied_rl.errors import UserError

CHILD = """
import os, signal, sys, time
from embodied_rl.benchmarks.parts import serve
from embodied_rl.errors import UserError

def good(quick):
    yield {"x": 1.5, "quick": quick}

def broken(quick):
    yield {"x": 2}
    raise ValueError("a cable is loose")

def refused(quick):
    raise UserError("no GPU here")
    yield

def crashes(quick):
    yield {"x": 3}
    os.kill(os.getpid(), signal.SIGKILL)

def hangs(quick):
    yield {"x": 4}
    time.sleep(600)

sys.exit(serve(sys.argv[1:], {f.__name__: f for f in (good, broken, refused, crashes, hangs)}))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_parts.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return "some_parts"


@pytest.mark.process
def test_failing_parts_are_named_and_keep_their_rows(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    saved: list[tuple[int, list[str]]] = []
    todo = [Part(name, 60) for name in ("broken", "refused", "crashes", "good")]
    rows, failures = run_parts(module, todo, True, Console(), lambda r, f: saved.append((len(r), list(f))))
    assert rows == [{"part": "broken", "x": 2}, {"part": "crashes", "x": 3}, {"part": "good", "x": 1.5, "quick": True}]
    assert failures == {
        "broken": "exit code 1: ValueError: a cable is loose",
        "refused": "exit code 2: no GPU here",
        "crashes": "exit code -9",
    }
    assert saved == [(1, ["broken"]), (1, ["broken", "refused"]), (2, list(failures)), (3, list(failures))]
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.process
def test_a_part_that_hangs_is_ended(module: str) -> None:
    rows, failures = run_parts(module, [Part("hangs", 20)], False, Console(), lambda rows, failures: None)
    assert rows == [{"part": "hangs", "x": 4}]
    assert failures == {"hangs": "ended after 20 s"}


def test_choosing_parts() -> None:
    known = (Part("act", 1), Part("update", 1), Part("render", 1))
    assert choose(None, known) == list(known)
    assert [part.name for part in choose("render, act", known)] == ["act", "render"]
    with pytest.raises(UserError, match=r"unknown part 'updat'. Did you mean 'update'\? Parts: act, update, render"):
        choose("updat", known)


def test_rows_are_written_as_they_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows"

    def work(quick: bool) -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        assert json.loads(file.read_text()) == {"a": 1}
        yield {"a": 2}

    assert serve(["p", str(file)], {"p": work}) == 0
    assert capsys.readouterr().out == "  a 1\n  a 2\n"
    assert sys.modules["embodied_rl.benchmarks.parts"] is parts


def test_busy_time_is_a_union_of_intervals() -> None:
    assert covered([]) == 0
    assert covered([(0, 1), (2, 3)]) == 2
    assert covered([(2, 5), (0, 3), (1, 2), (7, 8)]) == 6
    assert covered([(0, 10), (1, 2), (3, 4)]) == 10
    if not torch.cuda.is_available():
        assert gpu_busy(lambda: pytest.fail("nothing to measure")) is None
