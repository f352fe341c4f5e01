"""The page of a leaderboard: one HTML file, with films beside it, which opens offline.

Tables are whole without scripts, which filter and sort them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.telemetry.pages import render
from embodied_rl.telemetry.plots import Line, Plot, draw
from embodied_rl.telemetry.tables import lost_words
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted

ALL = "all tasks"


@dataclass(frozen=True, slots=True)
class Film:
    """A failed episode. source: its file, from the page's folder; succeeded: the run that was filmed did not fail."""

    row: str
    task: str
    init_state: int
    source: str
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Extras:
    """What the page shows and leaderboard.json doesn't hold.

    Args:
        speed: by row, `decisions_per_s`, its `seconds` in all, and how many evaluations shared the machine (`jobs`).
        machine: where that was.
        films: files beside the page.
    """

    speed: Mapping[str, Mapping[str, float]]
    machine: str
    films: Sequence[Film]


def write_leaderboard_page(path: Path, figures: Mapping[str, Any], extras: Extras) -> None:
    """Write the page of `figures`, as leaderboard.json has them; one that is there is replaced whole."""
    replace_text(path, render_leaderboard(figures, extras))


def render_leaderboard(figures: Mapping[str, Any], extras: Extras) -> str:
    """The page as text."""
    rows = figures["rows"]
    large, small = headline(figures)
    lines = _curves(rows)
    return render(
        "leaderboard.html",
        title=figures["title"],
        figures=figures,
        extras=extras,
        large=large,
        small=small,
        first=_facts(figures),
        scopes=[ALL, *dict.fromkeys(name for row in rows for part in ("suites", "tasks") for name in row[part])],
        scores=[json.dumps({ALL: row["success"], **row["suites"], **row["tasks"]}) for row in rows],
        curves=draw(Plot("Success on held-out states", lines, rates=True, large=True)) if lines else "",
    )


def headline(figures: Mapping[str, Any]) -> tuple[str, str]:
    """Who is best, and what that means; where the test has not decided between the best, it names no winner."""
    ranked = [row for row in figures["rows"] if row["rank"] is not None]
    level = f"at level {figures['test']['level']:g} for all comparisons together."
    if not ranked:
        return "No row is ranked", "Why stands with each row."
    best, *others = [row for row in ranked if row["rank"] == 1] or ranked[:1]
    rivals = others or [row for row in ranked if row is not best and _open(figures["comparisons"], best, row)]
    if not rivals:
        crowned = f"Better than every other row, {level}" if len(ranked) > 1 else "The only row that is ranked."
        return f"{best['name']}: {best['success']['rate']:.1%}", f"{_measured(best)}. {crowned}"
    words = "; ".join(f"{row['name']} {row['success']['rate']:.1%}, {_measured(row)}" for row in (best, *rivals))
    return "Not decided", f"Which of {counted(1 + len(rivals), 'row')} is best is open {level[:-1]}: {words}."


def _open(comparisons: Sequence[Mapping[str, Any]], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether nothing is decided between two rows."""
    names = {one["name"], other["name"]}
    return any(row["verdict"] == "not decided" and {row["first"], row["second"]} == names for row in comparisons)


def _measured(row: Mapping[str, Any]) -> str:
    score = row["success"]
    return (
        f"{score['successes']} of {score['episodes']} episodes, 95 % interval {score['low']:.1%} to "
        f"{score['high']:.1%}{lost_words(score)}"
    )


def _facts(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, and how."""
    measured = figures["measured"]
    return {
        "rows": len(figures["rows"]),
        "suites": ", ".join(measured["suites"]),
        "held-out states a task": measured.get("states_per_task") or "all",
        "evaluation seeds": ", ".join(map(str, measured["seeds"])),
        "protocol": figures["protocol"]["name"],
        "what the verdicts speak of": figures["test"]["speaks_of"],
    }


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[Line]:
    """The learning curves of the rows whose runs have some."""
    lines = []
    for row in rows:
        for number, curve in enumerate(row["training"]):
            if curve["held_out"] and not curve["by_return"]:
                label = row["name"] + (f", seed {number}" if len(row["training"]) > 1 else "")
                lines.append(Line(label, curve["held_out"]))
    return lines
