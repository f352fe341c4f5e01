"""Learning curves of several runs in one picture: SVG as text, which a browser draws without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 40
_COLOURS = ("#1f6feb", "#d1570b", "#1a7f37", "#8250df", "#bf3989", "#7d5a00")
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Lines differ by colour and, from the seventh on, by their dashes too; the legend names each."""


@dataclass(frozen=True, slots=True)
class Line:
    """One run. points: (training episodes, success, low, high), by episodes."""

    label: str
    points: Sequence[Sequence[float]]


def draw_curves(lines: Sequence[Line], title: str) -> str:
    """The picture and its legend as HTML; `title` is for those who can't see it. ValueError without a point."""
    most = max(point[0] for line in lines for point in line.points)
    marks = [_axes(most)]
    legend = []
    for number, line in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
        marks.append(_line(line, most, colour, dash))
        key = (
            "<svg width='28' height='8' aria-hidden='true'><line x1='0' y1='4' x2='28' y2='4' stroke-width='3' "
            f"stroke='{colour}' stroke-dasharray='{dash}'/></svg>"
        )
        legend.append(f"<li>{key} {escape(line.label)}</li>")
    return (
        f"<svg class='curves' viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{escape(title, quote=True)}'>"
        f"{''.join(marks)}</svg><ul class='legend'>{''.join(legend)}</ul>"
    )


def _x(episodes: float, most: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * episodes / (most or 1.0)


def _y(rate: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - rate)


def _axes(most: float) -> str:
    parts = []
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = _y(rate)
        parts.append(f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{at:.1f}' y2='{at:.1f}' class='grid'/>")
        parts.append(f"<text x='{_LEFT - 6}' y='{at + 4:.1f}' text-anchor='end'>{rate:.0%}</text>")
    for share in (0.0, 0.5, 1.0):
        anchor = "start" if share == 0.0 else "end" if share == 1.0 else "middle"
        text = f"{share * most:.0f}"
        parts.append(f"<text x='{_x(share * most, most):.1f}' y='{_HEIGHT - 20}' text-anchor='{anchor}'>{text}</text>")
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f"<text x='{middle:.0f}' y='{_HEIGHT - 4}' text-anchor='middle'>training episodes</text>")
    return "".join(parts)


def _line(line: Line, most: float, colour: str, dash: str) -> str:
    places = [(_x(point[0], most), *(_y(value) for value in point[1:4])) for point in line.points]
    path = " ".join(f"{x:.1f},{rate:.1f}" for x, rate, _, _ in places)
    band = " ".join(
        [f"{x:.1f},{high:.1f}" for x, _, _, high in places] + [f"{x:.1f},{low:.1f}" for x, _, low, _ in places[::-1]]
    )
    dots = "".join(
        f"<circle cx='{x:.1f}' cy='{rate:.1f}' r='3.5' fill='{colour}'><title>{escape(line.label)}, "
        f"{point[0]:.0f} episodes: {point[1]:.1%} ({point[2]:.1%} to {point[3]:.1%})</title></circle>"
        for (x, rate, _, _), point in zip(places, line.points, strict=True)
    )
    return (
        f"<polygon points='{band}' fill='{colour}' opacity='.15'/><polyline points='{path}' fill='none' "
        f"stroke='{colour}' stroke-width='2' stroke-dasharray='{dash}'/>{dots}"
    )
