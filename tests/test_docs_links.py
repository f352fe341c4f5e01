"""Links of the documentation lead to files and headings that exist, also where they name the repository's address."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from embodied_rl.version import REPOSITORY
from tests.test_docs_commands import PAGES, ROOT

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|\b(?:src|href)=\"([^\"]+)\"")
_OURS = (f"{REPOSITORY}/blob/main/", f"{REPOSITORY.replace('github.com', 'raw.githubusercontent.com')}/main/")
"""Where a file of the repository is read: as a page, and as it is."""


def anchors(page: Path) -> set[str]:
    """The names that a Markdown page's headings have in links."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(text: str) -> list[str]:
    """What a page's links and pictures lead to, in Markdown or HTML."""
    found = _LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [markdown or html for markdown, html in found]


def dead(page: Path, text: str) -> list[str]:
    """Links of `text`, as it stands in `page`, that lead nowhere."""
    found = []
    for link in links(text):
        ours = next((start for start in _OURS if link.startswith(start)), "")
        if not ours and link.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = link.removeprefix(ours).partition("#")
        target = ((ROOT if ours else page.parent) / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert dead(page, page.read_text(encoding="utf-8")) == []


def test_the_readme_reads_on_a_package_index() -> None:
    """Which shows it without the files around it."""
    found = links((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) > 40
    assert [link for link in found if not link.startswith("https://")] == []
    pictures = [link for link in found if link.endswith((".gif", ".png"))]
    assert pictures
    assert [link for link in pictures if not link.startswith(_OURS[1])] == []


@pytest.mark.parametrize(
    "link",
    [
        "docs/nowhere.md",
        "docs/train.md#no-such-heading",
        "#no-such-heading",
        f"{REPOSITORY}/blob/main/docs/nowhere.md",
        f"{REPOSITORY}/blob/main/docs/train.md#no-such-heading",
        f"{_OURS[1]}docs/images/nowhere.gif",
    ],
)
def test_a_dead_link_is_found(link: str) -> None:
    assert dead(ROOT / "README.md", f"[words]({link})") == [link]
    assert dead(ROOT / "README.md", f'<img src="{link}" width="1">') == [link]
