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

from embodied_rl.evaluation.evaluate import Score
from embodied_rl.sim.tabletop import load_suite, suites
from embodied_rl.telemetry.tables import cells, short_labels, success_table

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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "C"])
def test_terminals_without_box_characters_lose_no_result(encoding: str) -> None:
    program = """
from embodied_rl.cli import _tolerate_any_character
from embodied_rl.evaluation.evaluate import Score
from embodied_rl.telemetry.tables import cells, success_table
from embodied_rl.utils.console import LastingConsole
_tolerate_any_character()
console = LastingConsole()
console.say("caf\\u00e9 \\u4e2d \\udcff [bold]path[/bold]")
console.print(success_table(("task", "once"), [("the cup", [cells(Score(3, 4, 0.3, 0.9, 5.0, 0.0, 0.0))])]))
"""
    settings = {"LANG": "C", "LC_ALL": "C"} if encoding == "C" else {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=os.environ | settings, check=True)
    said = done.stdout.decode(errors="replace")
    assert "75.0% (3/4)" in said
    assert "30.0% to 90.0%" in said
    assert "the cup" in said
    assert "[bold]path[/bold]" in said
    assert not done.stderr
