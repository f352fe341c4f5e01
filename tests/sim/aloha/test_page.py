"""What docs/aloha.md shows in Python."""

from __future__ import annotations

import pytest

from tests.sim.aloha.there import needs_aloha
from tests.test_docs_snippets import ROOT, snippets

pytestmark = [needs_aloha(), pytest.mark.process]


def test_the_pages_snippet_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = snippets(ROOT / "docs" / "aloha.md")
    exec(snippet, {})
    assert capsys.readouterr().out.strip() == snippet.partition("#")[2].strip()
