"""Links of the documentation lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs_commands import PAGES, ROOT

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The names that a Markdown page's headings have in links."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead(page: Path, text: str) -> list[str]:
    """Links of `text`, as it stands in `page`, that lead nowhere."""
    found = []
    for link in _LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("link", ["docs/nowhere.md", "docs/train.md#no-such-heading", "#no-such-heading"])
def test_a_dead_link_is_found(link: str) -> None:
    assert dead(ROOT / "README.md", f"[words]({link})") == [link]
