"""The page of a leaderboard: one HTML file, with films beside it, which opens offline.

Tables are whole without scripts, which filter them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from embodied_rl.telemetry.leaderboard_media import MEDIA_STYLE, Extras, curves, films, speed
from embodied_rl.telemetry.report import folded, headline, page, pairs, replace_text, section

ALL = "all tasks"

_STYLE = """
.controls{display:flex;flex-wrap:wrap;gap:.75rem;margin:1rem 0}
.controls label{display:flex;flex-direction:column;font-size:.85rem}
.controls input,.controls select{font:inherit;padding:.3rem;min-width:10rem;max-width:90vw}
th button{font:inherit;font-weight:600;background:none;border:0;padding:0;color:inherit;cursor:pointer;text-align:left}
th button::after{content:" \\2195";opacity:.4}
th[aria-sort=ascending] button::after{content:" \\2191";opacity:1}
th[aria-sort=descending] button::after{content:" \\2193";opacity:1}
:focus-visible{outline:3px solid #1f6feb;outline-offset:2px}
.bar{position:relative;height:.75rem;min-width:8rem;background:#8882;margin-top:.3rem}
.bar i{position:absolute;top:0;bottom:0;background:#1f6feb66}
.bar b{position:absolute;top:-2px;bottom:-2px;width:3px;background:#1f6feb}
tr.apart td{opacity:.75}
@media(max-width:40rem){
.stack thead{position:absolute;left:-999rem}
.stack tr{display:block;border-bottom:2px solid #8886;padding:.5rem 0}
.stack td{display:grid;grid-template-columns:8rem 1fr;border:0;padding:.1rem 0}
.stack td::before{content:attr(data-label);opacity:.7}
.stack tr[hidden]{display:none}
}
"""

_SCRIPT = """
(function(){
var table=document.getElementById('board'),body=table.tBodies[0],rows=[].slice.call(body.rows);
var scope=document.getElementById('scope'),name=document.getElementById('name'),said=document.getElementById('said');
function figure(v){return (100*v).toFixed(1)+'%'}
function show(){
  var shown=0;
  rows.forEach(function(row){
    var score=JSON.parse(row.dataset.scores)[scope.value],cell=row.querySelector('.success');
    row.hidden=!score||row.dataset.name.toLowerCase().indexOf(name.value.toLowerCase())<0;
    if(row.hidden)return;
    shown++;
    cell.dataset.value=score.rate;
    cell.querySelector('.rate').textContent=figure(score.rate)+' ('+score.successes+'/'+score.episodes+')';
    var lost=score.not_measured,all=lost+score.episodes;
    cell.querySelector('small').textContent=figure(score.low)+' to '+figure(score.high)
      +(lost?', not measured: '+lost+' of '+all:'');
    cell.querySelector('i').style.left=100*score.low+'%';
    cell.querySelector('i').style.width=100*(score.high-score.low)+'%';
    cell.querySelector('b').style.left='calc('+100*score.rate+'% - 1px)';
    var steps=row.querySelector('.steps');
    steps.dataset.value=score.mean_steps;steps.querySelector('span').textContent=score.mean_steps.toFixed(0);
  });
  said.textContent=shown+' of '+rows.length+' rows shown';
}
function sort(head,index){
  var down=head.getAttribute('aria-sort')!=='descending';
  [].forEach.call(table.tHead.rows[0].cells,function(other){other.removeAttribute('aria-sort')});
  head.setAttribute('aria-sort',down?'descending':'ascending');
  rows.sort(function(a,b){
    var x=a.cells[index].dataset.value,y=b.cells[index].dataset.value,n=parseFloat(x)-parseFloat(y);
    var order=isNaN(n)?x.localeCompare(y):n;
    return down?-order:order;
  }).forEach(function(row){body.appendChild(row)});
}
[].forEach.call(table.tHead.rows[0].cells,function(head,index){
  head.querySelector('button').addEventListener('click',function(){sort(head,index)});
});
scope.addEventListener('change',show);name.addEventListener('input',show);
document.getElementById('controls').hidden=false;show();
})();
"""


def write_leaderboard_page(path: Path, figures: Mapping[str, Any], extras: Extras) -> None:
    """Write the page of `figures`, as leaderboard.json has them; one that is there is replaced whole."""
    replace_text(path, render(figures, extras))


def render(figures: Mapping[str, Any], extras: Extras) -> str:
    """The page as text."""
    best = figures["rows"][0]
    score = best["success"]
    test = figures["test"]
    words = (
        f"{score['successes']} of {score['episodes']} episodes, 95 % interval {score['low']:.1%} to "
        f"{score['high']:.1%}{lost_words(score)}. At level {test['level']:g} for all comparisons together."
    )
    parts = [
        f"<style>{_STYLE}{MEDIA_STYLE}</style>",
        f"<h1>{escape(figures['title'])}</h1>",
        headline(f"{best['name']}: {score['rate']:.1%}", words),
        *(
            f"<p>{escape(suite)}: {escape(ran['assets'])}</p>"
            for suite, ran in figures["machine"].items()
            if "assets" in ran
        ),
        section("Rows", _controls(figures["rows"]) + _board(figures["rows"])),
        section("Comparisons", _comparisons(figures["comparisons"], test)) if figures["comparisons"] else "",
        curves(figures["rows"]),
        films(extras.films),
        speed(extras),
        folded("How it was measured", pairs({**figures["measured"], "protocol": figures["protocol"]["name"]})),
        folded("How it was compared", pairs(test)),
        folded("Run it again", _again(figures["rows"])),
        folded("What ran", "".join(f"<h3>{escape(k)}</h3>{pairs(v)}" for k, v in figures["machine"].items())),
        f"<script>{_SCRIPT}</script>",
    ]
    return page(figures["title"], parts)


def _controls(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [ALL, *dict.fromkeys(name for row in rows for part in ("suites", "tasks") for name in row[part])]
    options = "".join(f"<option>{escape(name)}</option>" for name in names)
    return (
        "<div id='controls' class='controls' hidden>"
        f"<label for='scope'>Suite or task<select id='scope'>{options}</select></label>"
        "<label for='name'>Name contains<input id='name' type='search' autocomplete='off'></label>"
        "<p id='said' role='status' aria-live='polite'></p></div>"
    )


_HEADS = ("rank", "name", "success", "steps", "path length", "jerk", "trained on")


def _board(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th scope='col'><button type='button'>{name}</button></th>" for name in _HEADS)
    body = "".join(map(_row, rows))
    return (
        "<div class='wide'><table id='board' class='stack'><caption>Success on held-out initial states</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Mapping[str, Any]) -> str:
    score = row["success"]
    scores = escape(json.dumps({ALL: score, **row["suites"], **row["tasks"]}), quote=True)
    rank = "not ranked" if row["rank"] is None else str(row["rank"])
    note = f"<small>{escape(row['not_ranked'])}</small>" if row["not_ranked"] else ""
    cells = [
        _cell("rank", "999" if row["rank"] is None else rank, f"<span>{rank}</span>"),
        _cell("name", row["name"], f"<span>{escape(row['name'])}{note}</span>"),
        _cell("success", score["rate"], _bar(score, row["seeds"]), "success"),
        _cell("steps", score["mean_steps"], f"<span>{score['mean_steps']:.0f}</span>", "steps"),
        _cell("path length", row["motion"]["path_length"], f"<span>{row['motion']['path_length']:.1f}</span>"),
        _cell("jerk", row["motion"]["jerk"], f"<span>{row['motion']['jerk']:.3f}</span>"),
        _cell("trained on", row["overlap"], f"<span>{escape(row['overlap'])}</span>"),
    ]
    apart = " class='apart'" if row["rank"] is None else ""
    return f"<tr{apart} data-name='{escape(row['name'], quote=True)}' data-scores='{scores}'>{''.join(cells)}</tr>"


def _cell(label: str, value: Any, content: str, kind: str = "") -> str:
    named = f" class='{kind}'" if kind else ""
    return f"<td{named} data-label='{label}' data-value='{escape(str(value), quote=True)}'>{content}</td>"


def _bar(score: Mapping[str, Any], seeds: Mapping[str, Any] | None) -> str:
    low, high, rate = (100 * score[name] for name in ("low", "high", "rate"))
    return (
        f"<div><span class='rate'>{score['rate']:.1%} ({score['successes']}/{score['episodes']})</span>"
        f"<small>{score['low']:.1%} to {score['high']:.1%}{lost_words(score)}</small>"
        f"<div class='bar' aria-hidden='true'><i style='left:{low:.2f}%;width:{high - low:.2f}%'></i>"
        f"<b style='left:calc({rate:.2f}% - 1px)'></b></div>{_seeds(seeds)}</div>"
    )


def lost_words(score: Mapping[str, Any]) -> str:
    """', not measured: 2 of 52' of a score in leaderboard.json; '' where all was measured."""
    lost = score.get("not_measured", 0)
    return f", not measured: {lost} of {lost + score['episodes']}" if lost else ""


def _seeds(seeds: Mapping[str, Any] | None) -> str:
    """How far apart training seeds are; '' of a single one."""
    if seeds is None:
        return ""
    rates, interval = seeds["rates"], f"{seeds['low']:.1%} to {seeds['high']:.1%}"
    return (
        f"<span>{len(rates)} training seeds: {min(rates):.1%} to {max(rates):.1%}, mean {seeds['mean']:.1%} "
        f"({interval})</span>"
    )


def _comparisons(rows: Sequence[Mapping[str, Any]], test: Mapping[str, Any]) -> str:
    labels = ("row", "against", "verdict", "difference", test["unit"], "decided at")
    head = "".join(f"<th scope='col'>{name}</th>" for name in labels)
    body = ""
    for row in rows:
        look = "" if row["look"] is None else f"look {row['look']}"
        interval = f"<small>{row['low']:+.1%} to {row['high']:+.1%}</small>"
        difference = f"<div>{row['difference']:+.1%}{interval}</div>"
        values = (escape(row["first"]), escape(row["second"]), row["verdict"], difference, str(row["pairs"]), look)
        body += "<tr>" + "".join(
            f"<td data-label='{label}'>{value}</td>" for label, value in zip(labels, values, strict=True)
        )
        body += "</tr>"
    said = f"<p>Said of {escape(test['speaks_of'])}. Not decided is no proof of equality.</p>"
    table = f"<table class='stack'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"{said}<div class='wide'>{table}</div>"


def _again(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = "\n".join(cell["again"] for row in rows for cell in row["cells"])
    return f"<p>In this page's folder: a command runs what is missing of an evaluation.</p><pre>{escape(lines)}</pre>"
