"""Tables on the screen: tasks can be told apart at 80 columns, and terminals without box characters lose no figure."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from embodied_rl.cli import _tolerate_any_character
from embodied_rl.evaluation.evaluate import Score
from embodied_rl.sim.tabletop import load_suite, suites
from embodied_rl.telemetry.tables import cells, short_labels, success_table
from embodied_rl.utils.console import LastingConsole
from tests.embodied_rl.test_imports import ROOT

SCORE = Score(1000, 1000, 0.9962, 1.0, 123.0, 0.0, 0.0)


@given(
    st.lists(
        st.lists(st.sampled_from(["pick", "up", "the", "cup", "bowl"]), min_size=1, max_size=6).map("_".join),
        min_size=1,
        max_size=8,
        unique=True,
    )
)
def test_different_tasks_have_different_labels(names: list[str]) -> None:
    labels = short_labels([f"suite/{name}" for name in names])
    assert len(set(labels)) == len(names)
    assert all(label.strip(". ") for label in labels)


def test_one_task_keeps_its_name() -> None:
    assert short_labels(["suite/open_the_drawer"]) == ["open the drawer"]


@pytest.mark.parametrize("suite", suites())
def test_a_table_of_a_suite_at_80_columns(suite: str) -> None:
    labels = short_labels([task.name for task in load_suite(suite)])
    out = io.StringIO()
    rows = [(label, (cells(SCORE), cells(SCORE))) for label in labels]
    Console(file=out, width=80).print(success_table(("held-out states", "before", "after"), rows))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("100.0% (1000/1000)") == text.count("99.6% to 100.0%") == 2 * len(labels)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    first = [line.split("\N{BOX DRAWINGS LIGHT VERTICAL}")[1].strip() for line in text.splitlines() if "(1000" in line]
    assert len(set(first)) == len(labels)


def say_everything() -> None:
    """A line of odd characters and a table, on sys.stdout as it is now."""
    _tolerate_any_character()
    console = LastingConsole()
    console.say("caf\u00e9 \u4e2d \udcff [bold]path[/bold]")
    console.print(success_table(("task", "once"), [("the cup", [cells(Score(3, 4, 0.3, 0.9, 5.0, 0.0, 0.0))])]))


def nothing_is_lost(written: bytes) -> None:
    said = written.decode(errors="replace")
    assert "75.0% (3/4)" in said
    assert "30.0% to 90.0%" in said
    assert "the cup" in said
    assert "[bold]path[/bold]" in said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_without_box_characters_lose_no_result(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, write_through=True))
    say_everything()
    nothing_is_lost(written.getvalue())


@pytest.mark.process
def test_a_locale_without_characters_loses_no_result() -> None:
    """What Python makes of LANG=C shows in a process of its own alone."""
    program = f"from {__name__} import say_everything; say_everything()"
    settings = {"LANG": "C", "LC_ALL": "C", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=os.environ | settings, check=True)
    nothing_is_lost(done.stdout)
    assert not done.stderr
