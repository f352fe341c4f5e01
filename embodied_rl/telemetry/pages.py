"""Pages from jinja2 templates: a page is one HTML file that opens offline, with no script, style or font elsewhere.

Cards for the Hugging Face hub are Markdown.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from embodied_rl.telemetry.tables import cells, change_cells, figure, interval_words, lost_words, stand_in_words
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted, sentence


def render(template: str, **content: Any) -> str:
    """A template of this package, filled in; in HTML every value is escaped but `Markup`, which is HTML already."""
    return _TEMPLATES.get_template(template).render(**content)


def write_page(path: Path, template: str, **content: Any) -> None:
    """Write `render`'s page whole, or leave the one that is there."""
    replace_text(path, render(template, **content))


def data_uri(content: bytes, kind: str) -> str:
    """What a page embeds in place of a file's address; kind: its MIME type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _rate(value: float) -> str:
    return f"{value:.1%}"


def _signed(value: float) -> str:
    return f"{value:+.1%}"


def _scope(name: str) -> str:
    """A suite, or a task behind its suite's name."""
    suite, slash, _ = name.rpartition("/")
    return f"{suite}: {sentence(name)}" if slash else name


def _number(value: Any) -> str:
    """Of a metric: four digits; '' where it was not measured."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=select_autoescape(disabled_extensions=("md",), default=True),
    undefined=StrictUndefined,  # a misspelt name is an error, not an empty cell
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "cells": cells,
    "change_cells": change_cells,
    "count": counted,
    "data_uri": data_uri,
    "figure": figure,
    "interval": interval_words,
    "number": _number,
    "lost": lost_words,
    "rate": _rate,
    "scope": _scope,
    "sentence": sentence,
    "signed": _signed,
    "stand_ins": stand_in_words,
}
