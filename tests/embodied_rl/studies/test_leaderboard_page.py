"""The leaderboard's page in headless Chromium: no console error, filters, the keyboard alone, a narrow screen."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.studies.leaderboard_report import Extras, Video, headline, render_page, table_lines, write_page
from embodied_rl.telemetry.video import VideoWriter
from tests.browser import BROWSER, opened, until


def score(successes: int, episodes: int = 50) -> dict[str, Any]:
    rate = successes / episodes
    counts = {"successes": successes, "episodes": episodes, "mean_steps": 100.0 - successes}
    return {"rate": rate, "low": max(0.0, rate - 0.1), "high": min(1.0, rate + 0.1)} | counts


def row(name: str, rank: int | None, wins: int, tasks: dict[str, int]) -> dict[str, Any]:
    return {
        "name": name,
        "rank": rank,
        "not_ranked": "" if rank else "trained on 3 of its 50 evaluated states: not ranked",
        "overlap": "0 of 50",
        "success": score(wins),
        "motion": {"path_length": 10.0 + wins, "jerk": 0.3},
        "seeds": None,
        "training": [],
        "suites": {"toy": score(wins)},
        "tasks": {f"toy/{task}": score(count, 25) for task, count in tasks.items()},
        "cells": [{"folder": "cells/x", "again": "embodied-rl eval --resume cells/x"}],
    }


FIGURES: dict[str, Any] = {
    "title": "A <board>",
    "protocol": {"name": "native"},
    "measured": {"suites": ["toy"], "seeds": [0]},
    "test": {"level": 0.05, "looks": [25, 50], "unit": "states", "speaks_of": "these checkpoints"},
    "rows": [
        row("good & <great>", 1, 45, {"reach": 25, "touch": 20}),
        row("fair", 2, 30, {"reach": 5, "touch": 25}),
        row("trained on it", None, 49, {"reach": 25}),
    ],
    "comparisons": [
        {
            "first": "good & <great>",
            "second": "fair",
            "verdict": "better",
            "difference": 0.3,
            "low": 0.1,
            "high": 0.45,
            "pairs": 50,
            "look": 2,
        }
    ],
    "machine": {"toy": {"mujoco": "4.0.0"}},
}


FIGURES["rows"][0] |= {
    "seeds": {"rates": [0.85, 0.95], "mean": 0.9, "low": 0.4, "high": 1.0},
    "training": [{"by_return": False, "held_out": [[0, 0.5, 0.4, 0.6], [64, 0.9, 0.8, 0.95]], "rollout": []}],
}
EXTRAS = Extras(
    speed={"good & <great>": {"decisions_per_s": 123.4, "seconds": 90.0, "jobs": 2}},
    machine="a <machine>",
    videos=[Video("good & <great>", "toy/reach", 7, "cells/good_&/videos/reach state7.mp4", True)],
)


def test_names_are_text_and_not_markup() -> None:
    page = render_page(FIGURES, EXTRAS)
    assert "good &amp; &lt;great&gt;" in page
    assert "<great>" not in page
    assert "not ranked" in page
    assert "+30.0%" in page


def test_curves_films_speed_and_seeds_are_shown_where_there_are_some() -> None:
    page = render_page(FIGURES, EXTRAS)
    assert "64 episodes: 90.0% (80.0% to 95.0%)" in page
    assert 'src="cells/good_%26/videos/reach%20state7.mp4"' in page
    assert "which was recorded, succeeded" in page
    assert "<td>123.4</td><td>1.5</td><td>2</td>" in page
    assert "a &lt;machine&gt;" in page
    assert "2 training seeds: 85.0% to 95.0%, mean 90.0% (40.0% to 100.0%)" in page
    bare = FIGURES | {"rows": FIGURES["rows"][1:]}
    empty = render_page(bare, Extras({}, "", []))
    for heading in ("Training", "Failures", "Speed"):
        assert f"<h2>{heading}</h2>" in page
        assert f"<h2>{heading}</h2>" not in empty


def test_figures_of_motion_are_shown_where_every_row_has_them() -> None:
    still = FIGURES | {"rows": [*FIGURES["rows"][:-1], FIGURES["rows"][-1] | {"motion": None}]}
    assert 'data-label="jerk"' in render_page(FIGURES, EXTRAS)
    assert "jerk" not in render_page(still, EXTRAS)


def test_stand_ins_for_official_files_are_said_beside_the_result() -> None:
    said = "APPROXIMATE: 2 official files are stand-ins"
    figures = FIGURES | {"machine": {"toy": {"mujoco": "4.0.0"}, "goal": {"stand_in_files": 2}}}
    assert f"<p>goal: {said}</p>" in render_page(figures, EXTRAS).partition("<h2>Rows")[0]
    assert table_lines(figures, {})[-1] == f"  goal: {said}"
    assert "APPROXIMATE" not in render_page(FIGURES, EXTRAS) + "".join(table_lines(FIGURES, {}))


def board(*rows: tuple[str, int | None, int], undecided: Collection[frozenset[str]] = ()) -> dict[str, Any]:
    """Figures of rows (name, rank, wins); pairs that are not `undecided` are decided by their ranks."""
    ranked = [(name, rank) for name, rank, _ in rows if rank is not None]
    comparisons = [
        {
            "first": one,
            "second": other,
            "verdict": "not decided" if frozenset((one, other)) in undecided else "better" if a < b else "worse",
        }
        for i, (one, a) in enumerate(ranked)
        for other, b in ranked[i + 1 :]
    ]
    return FIGURES | {"rows": [row(name, rank, wins, {}) for name, rank, wins in rows], "comparisons": comparisons}


def test_the_headline_crowns_only_who_is_decided_better_than_every_other() -> None:
    large, small = headline(board(("a", 1, 45), ("b", 2, 30), ("c", None, 50)))
    assert large == "a: 90.0%"
    assert "45 of 50 episodes" in small
    assert "Better than every other row" in small
    large, small = headline(board(("a", 1, 45), ("b", 1, 44), ("c", 3, 2), undecided={frozenset("ab")}))
    assert large == "Not decided"
    assert "Which of 2 rows is best is open at level 0.05 for all comparisons together: a 90.0%, 45 of 50" in small
    assert "; b 88.0%" in small
    assert "c " not in small
    # a is better than b, and b than c; between a and c nothing is decided
    large, small = headline(board(("a", 1, 45), ("b", 2, 40), ("c", 2, 30), undecided={frozenset("ac")}))
    assert large == "Not decided"
    assert "a 90.0%" in small
    assert "c 60.0%" in small
    assert headline(board(("a", None, 45)))[0] == "No row is ranked"


@pytest.mark.process
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
def test_the_page_works_by_keyboard_and_on_a_narrow_screen(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    write_page(page, FIGURES, EXTRAS)
    with VideoWriter(tmp_path / EXTRAS.videos[0].source, 20) as film:
        for shade in range(4):
            film.write(np.full((64, 64, 3), 60 * shade, np.uint8))
    names = "[...document.querySelectorAll('#board tbody tr:not([hidden])')].map(r => r.dataset.name)"
    with opened(page.as_uri(), tmp_path / "profile") as tab:
        until(lambda: "rows shown" in (tab.value("document.getElementById('said')?.textContent") or ""))
        assert tab.value(names) == ["good & <great>", "fair", "trained on it"]
        choose = "scope.value='toy/touch'; scope.dispatchEvent(new Event('change'))"
        tab.value(choose)
        assert tab.value(names) == ["good & <great>", "fair"]
        assert tab.value("document.querySelector('#board .rate').textContent") == "80.0% (20/25)"
        focus = "document.activeElement.textContent"
        for _ in range(12):
            tab.press("Tab")
            if tab.value(focus) == "success":
                break
        assert tab.value(focus) == "success"
        tab.press("Enter")
        assert tab.value("document.activeElement.closest('th').getAttribute('aria-sort')") == "descending"
        assert tab.value(names) == ["fair", "good & <great>"]
        tab.value("document.getElementById('name').value='GOOD'")
        tab.value("document.getElementById('name').dispatchEvent(new Event('input'))")
        assert tab.value(names) == ["good & <great>"]
        tab.ask("Emulation.setDeviceMetricsOverride", width=360, height=800, deviceScaleFactor=1, mobile=True)
        assert tab.value("document.documentElement.scrollWidth") <= 360
        assert until(lambda: tab.value("document.querySelector('video').duration")) == pytest.approx(0.2)
        assert tab.errors == []
