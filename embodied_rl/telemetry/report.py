"""The report of a run: one HTML file that holds everything and opens offline."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from embodied_rl.evaluation.evaluate import Score
from embodied_rl.telemetry.tables import cells, figure, interval_words


@dataclass(frozen=True, slots=True)
class Outcome:
    """Success of one task (or of all together) on held-out states; `after` is None while the run has not ended."""

    label: str
    before: Score
    after: Score | None = None


@dataclass(frozen=True, slots=True)
class Clip:
    """Two recordings of the same held-out episode, as MP4 bytes; `after` is None while the run has not ended."""

    label: str
    before: bytes
    after: bytes | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the page shows.

    run_info: what really ran; outcomes: all tasks together, then each; metrics: lines of the metrics file; curve,
    gantt: PNGs, if any; left_out: a sentence about initial states that training leaves out, or ''.
    """

    title: str
    run_info: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    config: str
    metrics: Sequence[Mapping[str, Any]] = ()
    curve: bytes | None = None
    clips: Sequence[Clip] = field(default_factory=tuple)
    gantt: bytes | None = None
    left_out: str = ""


_STYLE = """
:root{color-scheme:light dark}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}
h1{font-size:1.25rem}h2{font-size:1.15rem;margin-top:2rem}
.headline{font-size:2.25rem;font-weight:600;line-height:1.2;margin:1rem 0 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem .25rem 0;border-bottom:1px solid #8884;text-align:left;vertical-align:top}
td small{display:block;opacity:.7}
tr.total td{font-weight:600}
img,video{max-width:100%}img{background:#fff}
.pair{display:flex;gap:.5rem}.pair video{width:16rem;max-width:50%}
pre{overflow:auto;padding:1rem;background:#8881;overflow-wrap:normal}
.wide{overflow-x:auto}figure{margin:1rem 0}
details{margin-top:2rem}summary{font-size:1.15rem;font-weight:600;cursor:pointer}
"""
# The figures that a reader looks for first; the rest is in metrics.jsonl.
_METRIC_COLUMNS = (
    "step",
    "rollout/success",
    "eval/success",
    "rollout/reward",
    "eval/return",
    "rollout/episodes",
    "rollout/filtered_groups",
    "rollout/broken_groups",
    "train/loss",
    "speed/decisions_per_s",
)


def render_report(report: Report) -> str:
    """The page as text: the result first, what ran folded below. Nothing is loaded from anywhere."""
    curve = _picture("learning curve against training episodes", report.curve) if report.curve else ""
    gantt = _picture("workers against time", report.gantt) if report.gantt else ""
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        _headline(report.outcomes[0]),
        section("Learning curve", curve) if curve else "",
        section("Before and after", "".join(map(_clip, report.clips))) if report.clips else "",
        section("Each task", _outcomes(report.outcomes)),
        section("Left out of training", f"<p>{escape(report.left_out)}</p>") if report.left_out else "",
        folded("What ran", pairs(report.run_info)),
        folded("Who worked when, first iterations", gantt) if gantt else "",
        folded("Metrics", _metrics(report.metrics)) if report.metrics else "",
        folded("Configuration", f"<pre>{escape(report.config)}</pre>"),
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


def folded(heading: str, content: str) -> str:
    """As `section`, but closed until it is clicked."""
    return f"<details><summary>{escape(heading)}</summary>\n{content}</details>"


def headline(large: str, small: str) -> str:
    """The page's result: a line that is read first, and what it means."""
    return f"<p class='headline'>{escape(large)}</p><p>{escape(small)}</p>"


def rate_cell(score: Score | None) -> str:
    """A cell with a rate and, below it, its interval."""
    rate, interval = cells(score)
    lines = "".join(f"<small>{escape(line)}</small>" for line in interval.splitlines() or [""])
    return f"<td>{escape(rate)}{lines}</td>"


def pairs(values: Mapping[str, Any]) -> str:
    """A table of names and values."""
    rows = "".join(
        f"<tr><td>{escape(str(key))}</td><td>{escape(str(value))}</td></tr>" for key, value in values.items()
    )
    return f"<div class='wide'><table>{rows}</table></div>"


def _headline(total: Outcome) -> str:
    """'62.0% -> 96.0%' (or mean returns) and the intervals."""
    scores = [total.before] + ([total.after] if total.after else [])
    words = " and ".join(
        f"{when}: {_counted(score)} episodes, 95 % interval {interval_words(score)}"
        for when, score in zip(("before", "after"), scores, strict=False)
    )
    ending = "" if total.after else " (the run has not ended)"
    what = "Success" if total.before.has_success else "Mean return"
    figures = " \N{RIGHTWARDS ARROW} ".join(figure(score) for score in scores)
    return headline(figures, f"{what} on held-out initial states, {words}{ending}.")


def _counted(score: Score) -> str:
    return f"{score.successes} of {score.episodes}" if score.has_success else str(score.episodes)


def _outcomes(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for index, outcome in enumerate(outcomes):
        total = " class='total'" if index == 0 else ""
        after = rate_cell(outcome.after) if outcome.after else "<td>not yet</td>"
        rows.append(f"<tr{total}><td>{escape(outcome.label)}</td>{rate_cell(outcome.before)}{after}</tr>")
    head = "<tr><th>task</th><th>before</th><th>after</th></tr>"
    return f"<div class='wide'><table>{head}{''.join(rows)}</table></div>"


def _picture(what: str, png: bytes) -> str:
    return f"<img alt='{what}' src='{data_uri('image/png', png)}'>"


def _clip(clip: Clip) -> str:
    videos = [("before", clip.before)] + ([("after", clip.after)] if clip.after else [])
    players = "".join(
        f"<video controls loop muted playsinline title='{name}' src='{data_uri('video/mp4', data)}'></video> "
        for name, data in videos
    )
    names = " and ".join(name for name, _ in videos)
    return f"<figure><div class='pair'>{players}</div><figcaption>{escape(clip.label)}: {names}</figcaption></figure>"


def _metrics(rows: Sequence[Mapping[str, Any]]) -> str:
    success = any("eval/success" in row for row in rows)
    spare = ("rollout/reward", "eval/return") if success else ()
    columns = [name for name in _METRIC_COLUMNS if name not in spare and any(name in row for row in rows)]
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
