"""The examples of docs/recording.md run as they stand, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "recording.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for example in examples:
        exec(compile(example, "docs/recording.md", "exec"), names)
    assert len(examples) == 3
    assert "open the drawer" in capsys.readouterr().out
