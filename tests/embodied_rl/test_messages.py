"""What an installed package prints names no file that only a checkout has, unless it says where a checkout is had."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from embodied_rl.jobs.reference_runs import reference_line, reference_runs
from embodied_rl.version import REPOSITORY
from tests.embodied_rl.test_packaging import expected_files
from tests.test_docs_commands import ROOT

_TARGETS = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
_NAMED = re.compile(
    rf"[\w.-]+(?:/[\w.-]+)+|\b[\w-]+\.(?:md|txt|toml|cff)\b|\bMakefile\b|\bmake (?:{'|'.join(_TARGETS)})\b"
)
SAYS_WHERE = "in a checkout of "
"""The address follows."""
WITH_ADDRESS = ("embodied_rl/assets/reference_runs.yaml",)
"""What is printed of it has the address before it."""
WRITTEN = ("README.md",)
"""Such a name alone is that of a file which the program writes: the card of what it exports."""


def shown(tree: ast.Module, *, is_command: bool) -> Iterator[str]:
    """A module's texts that somebody may read who runs it: all but docstrings, and of these the options' own.

    is_command: Those of classes too, which `--help` prints.
    """
    helpful = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            helpful |= {id(child) for child in node.body[0 if is_command else 1 :]}
    silent = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and id(n) not in helpful}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


def packaged() -> set[str]:
    """Files and folders of the wheel, as they are called in it and in a checkout."""
    files = {name for file in expected_files() for name in (file, file.removeprefix("embodied_rl/"))}
    return files | {str(parent) for file in files for parent in Path(file).parents}


def lacking(text: str, there: set[str]) -> list[str]:
    """What `text` names that is in a checkout, or done in one, and not in the wheel that holds `there`."""
    if SAYS_WHERE in text:
        return []
    return [name for name in _NAMED.findall(text) if name.startswith("make ") or _only_here(name.rstrip("."), there)]


def _only_here(name: str, there: set[str]) -> bool:
    own = name.startswith("runs/")  # of whoever trains in a checkout
    return not own and name not in there and (ROOT / name).exists()


def test_no_message_names_a_file_that_the_wheel_lacks() -> None:
    found, there = dict[str, list[str]](), packaged()
    for file in sorted(expected_files() - set(WITH_ADDRESS)):
        path = ROOT / file
        if path.suffix == ".py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts = list(shown(tree, is_command="cli" in path.parts))
        elif path.suffix in (".yaml", ".xml", ".txt", ".html"):
            texts = [path.read_text(encoding="utf-8")]
        else:
            continue
        if names := [name for text in texts if text not in WRITTEN for name in lacking(text, there)]:
            found[file] = names
    assert found == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see docs/train.md.", ["docs/train.md."]),
        ("sh .ci/install-torch python", [".ci/install-torch"]),
        ("run `make ros2`", ["make ros2"]),
        ("as README.md says", ["README.md"]),
        (f"{SAYS_WHERE}{REPOSITORY}: make ros2", []),
        (f"{REPOSITORY}/blob/main/docs/train.md", []),
        ("assets/tabletop, make it again", []),
        ("openpi's examples/libero/main.py", []),
    ],
)
def test_what_only_a_checkout_has_is_found(text: str, names: list[str]) -> None:
    assert lacking(text, packaged()) == names


def test_options_are_read_and_docstrings_are_not() -> None:
    tree = ast.parse(
        '"""a"""\nclass C:\n    """b"""\n    x: int = 0\n    """c"""\n    def f(self):\n        """d"""\n        g("e")'
    )
    assert list(shown(tree, is_command=False)) == ["c", "e"]
    assert list(shown(tree, is_command=True)) == ["b", "c", "e"]


def test_reference_runs_say_where_they_are_read() -> None:
    for reference in reference_runs().values():
        assert f"{REPOSITORY}/blob/main/{reference.source}" in reference_line(reference)
        assert (ROOT / reference.source).is_file()
