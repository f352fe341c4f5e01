"""The one drawer of curves: SVG as text, which a page embeds and a browser draws, without matplotlib or scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from embodied_rl.telemetry.pages import render

_COLOURS = ("#3b82f6", "#e0701a", "#2f9e57", "#9b6cf0", "#d9559b", "#a8852a")
"""Readable on white and on black."""
_DASHES = ("", "6 3", "2 3", "8 3 2 3")
"""Lines differ by colour and, from the seventh on, by their dashes too; the key names each."""
_HAIR = 0.02
"""Share of a step."""
_DOTS_UP_TO = 40
"""Points of a line that are marked; more would hide it."""


@dataclass(frozen=True, slots=True)
class Line:
    """points: (x, y), or (x, y, low, high) with a 95 % interval, by rising x. faint: drawn grey, behind the others."""

    label: str
    points: Sequence[Sequence[float]]
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn.

    Args:
        title: above it, and for those who cannot see it.
        lines: at least one of them with a point.
        note: what the quantity means, below the title.
        rates: y is a share, from 0 % to 100 %.
        large: as wide as the page.
        x_label: of the x axis.
    """

    title: str
    lines: Sequence[Line]
    note: str = ""
    rates: bool = False
    large: bool = False
    x_label: str = "training episodes"


@dataclass(frozen=True, slots=True)
class _Axes:
    """Pixels of the drawing, and the values at its edges; left, below: room for the axes' numbers and names."""

    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    left: int
    below: int
    top: int = 14

    @property
    def right(self) -> int:
        return self.width - 16

    @property
    def bottom(self) -> int:
        return self.height - self.below

    def x(self, value: float) -> float:
        low, high = self.x_range
        return round(self.left + (self.right - self.left) * (value - low) / (high - low), 1)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return round(self.bottom - (self.bottom - self.top) * (value - low) / (high - low), 1)


def draw(plot: Plot) -> Markup:
    """The drawing under its title and above its key, as HTML. ValueError without a point."""
    lines = [line for line in plot.lines if line.points]
    if not lines:
        raise ValueError(f"'{plot.title}' has no point to draw")
    points = [point for line in lines for point in line.points]
    x_ticks = ticks(min(0.0, *(point[0] for point in points)), max(point[0] for point in points), most=8)
    values = [value for point in points for value in point[1:]]
    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if plot.rates else ticks(min(values), max(values), most=5)
    # The x axis ends with the data, the y axis at a tick.
    x_range = (x_ticks[0], max(x_ticks[0] + 1e-9, *(point[0] for point in points)))
    y_texts = [f"{tick:.0%}" if plot.rates else _text(tick, y_ticks) for tick in y_ticks]
    # A large one shrinks more on a narrow screen, where its letters grow (style.css): it has room for them.
    width, height, letter, below = (800, 300, 13, 56) if plot.large else (440, 220, 8, 38)
    left = 14 + letter * max(map(len, y_texts))
    axes = _Axes(width, height, x_range, (y_ticks[0], y_ticks[-1]), left, below)
    drawn = [_drawn(line, axes, *_style(lines, line), rates=plot.rates) for line in lines]
    drawing = render(
        "plot.svg",
        title=plot.title,
        width=width,
        height=height,
        font=13,
        left=axes.left,
        right=axes.right,
        bottom=axes.bottom,
        x_label=plot.x_label,
        x_ticks=[(axes.x(tick), _text(tick, x_ticks)) for tick in x_ticks if tick <= x_range[1]],
        y_ticks=[(axes.y(tick), text) for tick, text in zip(y_ticks, y_texts, strict=True)],
        lines=sorted(drawn, key=lambda line: not line["faint"]),
    )
    return Markup(render("plot.html", plot=plot, large=plot.large, drawing=Markup(drawing), lines=drawn))


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers, a step of 1, 2 or 5 times a power of ten apart, that enclose `low` and `high`.

    >>> ticks(0.0, 1280.0)
    [0.0, 500.0, 1000.0, 1500.0]
    """
    size = max(abs(low), abs(high))
    if high - low <= max(1e-12, 1e-9 * size):  # one value, but for rounding: it stands in the middle
        reach = 0.1 * size if size > 1e-9 else 1.0
        low, high = low - reach, high + reach
    magnitude = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(factor * magnitude for factor in (1, 2, 5, 10, 20) if (high - low) / (factor * magnitude) <= most - 1)
    # A value a hair beyond a tick does not open a whole step beyond it.
    first, last = math.floor(low / step + _HAIR), math.ceil(high / step - _HAIR)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _text(tick: float, all_ticks: Sequence[float]) -> str:
    """With as many decimals as the step needs; powers of ten where these would be long."""
    step = all_ticks[1] - all_ticks[0]
    if tick and (step < 1e-5 or abs(tick) >= 1e6):
        return f"{tick:.3g}"
    return f"{tick:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _style(lines: Sequence[Line], line: Line) -> tuple[str, str]:
    """Colour and dashes."""
    if line.faint:
        return "#8b929b", ""
    number = [other for other in lines if not other.faint].index(line)
    return _COLOURS[number % len(_COLOURS)], _DASHES[number // len(_COLOURS) % len(_DASHES)]


def _drawn(line: Line, axes: _Axes, colour: str, dash: str, *, rates: bool) -> dict[str, Any]:
    """What the template needs of a line."""
    places = [(axes.x(point[0]), axes.y(point[1])) for point in line.points]
    banded = [point for point in line.points if len(point) > 2]
    band = [(axes.x(point[0]), axes.y(point[3])) for point in banded]
    band += [(axes.x(point[0]), axes.y(point[2])) for point in reversed(banded)]
    marked = zip(places, line.points, strict=True) if len(places) <= _DOTS_UP_TO else ()
    return {
        "label": line.label,
        "faint": line.faint,
        "colour": colour,
        "dash": dash,
        "radius": 2.5 if line.faint else 3.5,
        "path": _joined(places),
        "band": _joined(band),
        "dots": [(x, y, f"{line.label}, {_words(point, rates=rates)}") for (x, y), point in marked],
    }


def _joined(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in places)


def _words(point: Sequence[float], *, rates: bool) -> str:
    """'64 episodes: 90.0% (80.0% to 95.0%)'."""
    y, *interval = (f"{value:.1%}" if rates else f"{value:.4g}" for value in point[1:])
    return f"{point[0]:.0f} episodes: {y}" + (f" ({interval[0]} to {interval[1]})" if interval else "")
