"""The report of a run: one HTML file that holds everything and opens offline."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """Success of one task (or of all together) on held-out states: rate and Wilson interval, before and after."""

    label: str
    before: tuple[int, int, float, float]
    """successes, episodes, interval's low and high end."""
    after: tuple[int, int, float, float] | None = None
    """None while the run has not ended."""


@dataclass(frozen=True, slots=True)
class Clip:
    """Two recordings of the same held-out episode, as MP4 bytes; `after` is None while the run has not ended."""

    label: str
    before: bytes
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows. stamp: what really ran; metrics: lines of the metrics file; curve, gantt: PNGs, if any."""

    title: str
    run_info: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    config: str
    metrics: Sequence[Mapping[str, Any]] = ()
    curve: bytes | None = None
    clips: Sequence[Clip] = field(default_factory=tuple)
    gantt: bytes | None = None


_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem;border-bottom:1px solid #8884;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}
tr.total td{font-weight:600}
img{max-width:100%;background:#fff}video{width:16rem;max-width:48%;image-rendering:auto}
pre{overflow:auto;padding:1rem;background:#8881}.wide{overflow-x:auto}figure{margin:1rem 0}
"""
# The figures that a reader looks for first; the rest is in metrics.jsonl.
_METRIC_COLUMNS = (
    "step",
    "rollout/success",
    "eval/success",
    "rollout/episodes",
    "rollout/filtered_groups",
    "train/loss",
    "speed/decisions_per_s",
)


def render_report(report: Report) -> str:
    """The page as text. Everything that comes from outside is escaped; nothing is loaded from anywhere."""
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        section("What ran", pairs(report.run_info)),
        section("Success on held-out initial states", _outcomes(report.outcomes)),
        section("Learning curve", _picture("success against training episodes", report.curve)) if report.curve else "",
        section("Before and after", "".join(map(_clip, report.clips))) if report.clips else "",
        section("Who worked when, first iterations", _picture("workers against time", report.gantt))
        if report.gantt
        else "",
        section("Metrics", _metrics(report.metrics)) if report.metrics else "",
        section("Configuration", f"<pre>{escape(report.config)}</pre>"),
    ]
    return page(report.title, parts)


def write_report(path: Path, report: Report) -> None:
    """Write the page; a page that is there is replaced whole."""
    replace_text(path, render_report(report))


def page(title: str, parts: Sequence[str]) -> str:
    """A whole page that opens offline; `parts` are HTML, empty ones are left out."""
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def replace_text(path: Path, text: str) -> None:
    """Write a file whole, or leave what was there."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def section(heading: str, content: str) -> str:
    """`content` is HTML, `heading` is text."""
    return f"<section><h2>{escape(heading)}</h2>\n{content}</section>"


def pairs(values: Mapping[str, Any]) -> str:
    """A table of names and values."""
    rows = "".join(
        f"<tr><td>{escape(str(key))}</td><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for key, value in values.items()
    )
    return f"<div class='wide'><table>{rows}</table></div>"


def _outcomes(outcomes: Sequence[Outcome]) -> str:
    head = "<tr><th>task</th><th>before</th><th>95 % interval</th><th>after</th><th>95 % interval</th></tr>"
    rows = []
    for index, outcome in enumerate(outcomes):
        total = " class='total'" if index == 0 else ""
        cells = _rate(outcome.before) + (_rate(outcome.after) if outcome.after else "<td>not yet</td><td></td>")
        rows.append(f"<tr{total}><td>{escape(outcome.label)}</td>{cells}</tr>")
    return f"<div class='wide'><table>{head}{''.join(rows)}</table></div>"


def _rate(numbers: tuple[int, int, float, float]) -> str:
    successes, episodes, low, high = numbers
    rate = successes / episodes
    return f"<td>{rate:.1%} ({successes}/{episodes})</td><td>{low:.1%} to {high:.1%}</td>"


def _picture(what: str, png: bytes) -> str:
    return f"<img alt='{what}' src='{data_uri('image/png', png)}'>"


def _clip(clip: Clip) -> str:
    videos = [("before", clip.before)] + ([("after", clip.after)] if clip.after else [])
    players = "".join(
        f"<video controls loop muted playsinline title='{name}' src='{data_uri('video/mp4', data)}'></video> "
        for name, data in videos
    )
    names = " and ".join(name for name, _ in videos)
    return f"<figure>{players}<figcaption>{escape(clip.label)}: {names}</figcaption></figure>"


def _metrics(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = [name for name in _METRIC_COLUMNS if any(name in row for row in rows)]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(_number(row.get(name)))}</td>" for name in columns) + "</tr>" for row in rows
    )
    return f"<div class='wide'><table><tr>{head}</tr>{lines}</table></div>"


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def data_uri(kind: str, content: bytes) -> str:
    """What a page embeds in place of a file's address; kind: its MIME type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
