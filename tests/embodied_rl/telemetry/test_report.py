"""The report opens offline, shows the right figures, and cannot be broken by what it quotes."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

from embodied_rl.evaluation.evaluate import Score
from embodied_rl.telemetry.report import Clip, Outcome, Report, render_report, write_report

EVIL = """</pre><script>alert("x")</script> & 'quoted'"""


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails on a tag closed in the wrong order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def example(text: str = "plain") -> Report:
    return Report(
        title=text,
        run_info={"suite": text, text: 3},
        outcomes=[
            Outcome(
                "all tasks", Score(31, 50, 0.482, 0.741, 90.0, 0.0, 0.0), Score(48, 50, 0.865, 0.989, 80.0, 0.0, 0.0)
            ),
            Outcome(text, Score(1, 4, 0.05, 0.7, 100.0, 0.0, 0.0)),
        ],
        config=text,
        metrics=[{"step": 1, "rollout/success": 0.5, "train/loss": None}, {"step": 2}],
        curve=b"\x89PNG picture",
        clips=[Clip(text, b"film one", b"film two"), Clip("unfinished", b"film three")],
    )


def test_figures_pictures_and_films_are_inside() -> None:
    page = Page(render_report(example()))
    assert "62.0% (31/50)" in page.text
    assert "48.2% to 74.1%" in page.text
    assert "96.0% (48/50)" in page.text
    assert "not yet" in page.text
    content = [base64.b64decode(link.partition("base64,")[2]) for link in page.links]
    assert content == [b"\x89PNG picture", b"film one", b"film two", b"film three"]
    assert page.tags.count("video") == 3


def test_the_result_comes_first_and_what_ran_is_folded() -> None:
    text = render_report(example())
    order = ["62.0% \N{RIGHTWARDS ARROW} 96.0%", "Learning curve", "Before and after", "Each task", "<details>"]
    assert sorted(order, key=text.index) == order
    for heading in ("What ran", "Metrics", "Configuration"):
        assert f"<details><summary>{heading}" in text
    assert " open>" not in text


def test_nothing_overflows_a_narrow_page() -> None:
    """No browser here: the rules that let every part shrink or scroll by itself."""
    text = render_report(example("x" * 300))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert re.search(r"body\{[^}]*overflow-wrap:anywhere", style)
    assert "nowrap" not in style
    assert re.search(r"img,video\{max-width:100%\}", style)
    assert re.search(r"pre\{overflow:auto", style)
    assert re.search(r"\.wide\{overflow-x:auto\}", style)
    assert not re.search(r"(?<!max-)width:\s*\d{3,}px|min-width", style)
    tables = len(re.findall("<table>", text))
    assert tables == len(re.findall("<div class='wide'><table>", text)) == 3


def test_nothing_is_loaded_from_anywhere() -> None:
    text = render_report(example())
    assert all(link.startswith("data:") for link in Page(text).links)
    assert not re.search(r"https?://|url\(|@import", text)


def test_quoted_text_cannot_become_markup() -> None:
    page = Page(render_report(example(EVIL)))
    assert "script" not in page.tags
    # title twice, stamp twice, outcome, clip, config
    assert page.text.count(EVIL) == 7


def test_a_run_without_pictures_has_no_empty_sections() -> None:
    report = Report("t", {}, [Outcome("all tasks", Score(0, 1, 0.0, 0.8, 50.0, 0.0, 0.0))], "c")
    text = render_report(report)
    assert "Learning curve" not in text
    assert "Before and after" not in text
    assert "Metrics" not in text


def test_writing_replaces_the_page_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(path, example())
    assert path.read_text(encoding="utf-8") == render_report(example())
    assert list(tmp_path.iterdir()) == [path]
