"""The site of docs/ (`make docs`): the API reference has every public name, and nothing comes from elsewhere."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import yaml

import embodied_rl

ROOT = Path(__file__).parents[1]
API = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name_where_it_is() -> None:
    paths: list[str] = re.findall(r"^::: (\S+)$", API, re.MULTILINE)
    listed = {path.rpartition(".")[2]: path.rpartition(".")[0] for path in paths}
    said = set(re.findall(r"`erl\.(\w+)`", API))
    assert {*listed, *said} >= set(embodied_rl.__all__)
    for name in listed.keys() & set(embodied_rl.__all__):
        assert getattr(import_module(listed[name]), name) is getattr(embodied_rl, name)
    assert {f"{listed[name]}.{name}" for name in ("types", "vec_env", "policy")} == {
        f"embodied_rl.{name}" for name in ("types", "vec_env", "policy")
    }


def test_no_font_is_fetched_and_strict_is_on() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert site["theme"]["font"] is False
    assert site["strict"] is True
    assert not {"extra_css", "extra_javascript"} & site.keys()
