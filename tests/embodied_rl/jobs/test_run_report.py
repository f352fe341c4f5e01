"""The report opens offline, shows the right figures, and cannot be broken by what it quotes."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser

from embodied_rl.evaluation.change import Change
from embodied_rl.evaluation.evaluate import Score
from embodied_rl.jobs.run_report import Clip, Report, TaskOutcome, render_report
from embodied_rl.utils.words import sentence

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
        state="Training run, finished",
        when="after 2 updates",
        facts={"policy": text, "critic": None},
        run_info={"suite": text, text: 3},
        outcomes=[
            TaskOutcome(
                "all tasks",
                Score(31, 50, 0.482, 0.741, 90.0, 0.0, 0.0),
                Score(48, 50, 0.865, 0.989, 80.0, 0.0, 0.0),
                Change(0.34, 0.19, 0.47, 50),
            ),
            TaskOutcome(text, Score(1, 4, 0.05, 0.7, 100.0, 0.0, 0.0)),
        ],
        config=text,
        metrics=[
            {"step": 1, "rollout/episodes": 8.0, "rollout/success": 0.5, "train/loss": None, "train/approx_kl": 0.01},
            {"step": 2, "rollout/episodes": 8.0, "rollout/success": 0.75, "train/approx_kl": None},
        ],
        clips=[Clip(text, b"film one", b"film two"), Clip("unfinished", b"film three")],
    )


def test_figures_pictures_and_films_are_inside() -> None:
    page = Page(render_report(example()))
    assert "62.0% (31/50)" in page.text
    assert "48.2% to 74.1%" in page.text
    assert "96.0% (48/50)" in page.text
    assert "not yet" in page.text
    assert "+34.0 points (95 % interval +19.0 to +47.0) on the same 50 initial states" in page.text
    content = [base64.b64decode(link.partition("base64,")[2]) for link in page.links]
    assert content == [b"film one", b"film two", b"film three"]
    assert page.tags.count("video") == 3


def test_what_was_measured_is_drawn_and_nothing_else() -> None:
    text = render_report(example())
    for drawn in ("Success", "KL divergence"):
        assert f'aria-label="{drawn}"' in text
    for absent in ("Entropy", "Explained variance", "Value loss"):
        assert absent not in text
    assert Page(text).tags.count("polyline") == 2
    assert "8 episodes: 50.0%" in text


def test_tasks_are_named_by_their_sentences() -> None:
    task = "libero_90/KITCHEN_SCENE10_close_the_top_drawer"
    score = Score(1, 4, 0.05, 0.7, 100.0, 0.0, 0.0)
    report = replace(
        example(), outcomes=[TaskOutcome("all tasks", score), TaskOutcome(task, score)], clips=[Clip(task, b"x")]
    )
    page = Page(render_report(report))
    assert page.text.count("close the top drawer (kitchen scene 10)") == 2
    assert "close_the" not in page.text


def test_a_run_that_goes_on_shows_what_it_has() -> None:
    report = replace(example(), outcomes=[replace(example().outcomes[0], after=None)], state="1 of 5 updates so far")
    page = Page(render_report(report))
    assert "1 of 5 updates so far" in page.text
    assert "before training 62.0%" in page.text
    assert "\N{RIGHTWARDS ARROW}" not in page.text


def test_the_result_comes_first_and_what_ran_is_folded() -> None:
    text = render_report(example())
    order = [
        "62.0% \N{RIGHTWARDS ARROW} 96.0%",
        "policy",
        "Success</figcaption>",
        "<h2>Before and",
        "<h2>Each",
        "<details>",
    ]
    assert sorted(order, key=text.index) == order
    for heading in ("What ran", "Metrics", "Configuration"):
        assert f"<details><summary>{heading}" in text
    assert " open>" not in text


def test_nothing_overflows_a_narrow_page() -> None:
    """No browser here: the rules that let every part shrink or scroll by itself."""
    text = render_report(example("x" * 300))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert re.search(r"body\{[^}]*overflow-wrap:anywhere", style)
    assert re.search(r"video,svg,img\{max-width:100%\}", style)
    assert re.search(r"pre\{overflow:auto", style)
    assert re.search(r"\.wide\{overflow-x:auto\}", style)
    assert not re.search(r"(?<!max-)width:\s*\d{3,}px|min-width", style)
    tables = len(re.findall("<table", text))
    assert tables == len(re.findall('<div class="wide"><table', text)) == 3


def test_nothing_is_loaded_from_anywhere() -> None:
    text = render_report(example())
    assert all(link.startswith("data:") for link in Page(text).links)
    assert not re.search(r"https?://|url\(|@import", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))


def test_quoted_text_cannot_become_markup() -> None:
    page = Page(render_report(example(EVIL)))
    assert "script" not in page.tags
    # title twice, facts, stamp twice, config; a task's sentence has lost what is before the slash
    assert page.text.count(EVIL) == 6
    assert page.text.count(sentence(EVIL)) == 6 + 3


def test_a_run_without_pictures_has_no_empty_sections() -> None:
    report = Report("t", "s", "after", {}, {}, [TaskOutcome("all tasks", Score(0, 1, 0.0, 0.8, 50.0, 0.0, 0.0))], "c")
    text = render_report(report)
    for heading in ("Training", "Before and after"):
        assert f"<h2>{heading}" not in text
    for heading in ("Metrics", "Who worked"):
        assert f"<summary>{heading}" not in text
