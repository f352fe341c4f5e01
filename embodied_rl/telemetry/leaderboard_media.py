"""What a leaderboard's page shows beside its tables: learning curves, films of failures, decisions a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from embodied_rl.telemetry.report import section
from embodied_rl.telemetry.svg_curve import Line, draw_curves

MEDIA_STYLE = """
.curves{width:100%;height:auto;font-size:12px}
.curves text{fill:currentColor}.curves .grid{stroke:#8884}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.25rem 1rem}
.films{display:flex;flex-wrap:wrap;gap:1rem}.films figure{margin:0;width:16rem;max-width:100%}
.films video{width:100%}
"""


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
        speed: by row, `decisions_per_s` and how many evaluations shared the machine (`jobs`).
        machine: where that was.
        films: files beside the page.
    """

    speed: Mapping[str, Mapping[str, float]]
    machine: str
    films: Sequence[Film]


def curves(rows: Sequence[Mapping[str, Any]]) -> str:
    """The section with the learning curves of the rows whose runs have some; '' where none has."""
    lines = []
    for row in rows:
        for number, curve in enumerate(row["training"]):
            if curve["held_out"] and not curve["by_return"]:
                label = row["name"] + (f", seed {number}" if len(row["training"]) > 1 else "")
                lines.append(Line(label, curve["held_out"]))
    if not lines:
        return ""
    note = "<p>Success on held-out states while it was trained, with 95 % intervals, as each run measured it.</p>"
    return section("Training", draw_curves(lines, "success on held-out states against training episodes") + note)


def films(found: Sequence[Film]) -> str:
    """The section with the films; '' without one."""
    return section("Failures", f"<div class='films'>{''.join(map(_film, found))}</div>") if found else ""


def _film(film: Film) -> str:
    task = film.task.partition("/")[2] or film.task
    again = "<br>its second run, which was filmed, succeeded" if film.succeeded else ""
    caption = f"{escape(film.row)}: {escape(task.replace('_', ' '))}, state {film.init_state}{again}"
    source = quote(film.source)
    return (
        f"<figure><video controls muted playsinline preload='metadata' src='{source}'></video>"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def speed(extras: Extras) -> str:
    """The section with the decisions a second; '' where nothing was timed."""
    if not extras.speed:
        return ""
    lines = "".join(
        f"<tr><td>{escape(name)}</td><td>{found['decisions_per_s']:.1f}</td><td>{found['jobs']:.0f}</td></tr>"
        for name, found in extras.speed.items()
    )
    head = "<tr><th scope='col'>row</th><th scope='col'>decisions/s</th><th scope='col'>side by side</th></tr>"
    return (
        f"<section id='speed'><h2>Speed</h2><div class='wide'><table><thead>{head}</thead><tbody>{lines}</tbody>"
        f"</table></div><p>Of one evaluation, simulator and policy together, on {escape(extras.machine)}; evaluations "
        "that ran side by side shared it. The only figures that another start doesn't repeat.</p></section>"
    )
