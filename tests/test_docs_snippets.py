"""Python in README and docs: every name is defined, what is imported is there, and cheap snippets are run."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot import client
from embodied_rl.real_robot.client.wire import pack, unpack
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.observations import PolicySpec, read_request

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = ("docs/latency.md", "docs/real_robot.md", "docs/real_robot_core.md", "docs/serve.md")
"""Others are run beside what they show: docs/extend, docs/recording.md, docs/views.md."""


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def defined(tree: ast.AST) -> set[str]:
    """Names that a snippet makes, anywhere in it."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def undefined(trees: list[ast.Module]) -> set[str]:
    """Names that are read in snippets, one after the other, and made in none so far."""
    known, missing = set(dir(builtins)) | {"__name__", "__doc__"}, set[str]()
    for tree in trees:
        known |= defined(tree)
        missing |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id not in known}
    return missing


def lacking(trees: list[ast.Module]) -> list[str]:
    """What is imported of this package and is not there."""
    found = list[str]()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "embodied_rl":
            try:
                module = importlib.import_module(str(node.module))
            except ModuleNotFoundError as error:
                if str(error.name).startswith("embodied_rl"):
                    found.append(str(node.module))
                continue  # another package that is not everywhere
            for alias in node.names:
                if not hasattr(module, alias.name) and not _is_module(f"{node.module}.{alias.name}"):
                    found.append(f"{node.module}.{alias.name}")
    return found


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


WITH = [page for page in PAGES if snippets(page)]


@pytest.mark.parametrize("page", WITH, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_are_defined_and_what_is_imported_is_there(page: Path) -> None:
    trees = [ast.parse(snippet) for snippet in snippets(page)]
    assert undefined(trees) == set()
    assert lacking(trees) == []


def test_a_name_that_nobody_defines_is_found() -> None:
    tree = ast.parse(
        "from embodied_rl.policy import Nothing\ndef f(a, *b): c = a; return c\nprint([x for x in f(now)])"
    )
    assert (undefined([tree]), lacking([tree])) == ({"now"}, ["embodied_rl.policy.Nothing"])


class Server:
    """Reads each request as the server does, and answers it."""

    spec = PolicySpec(cameras=2, image_size=8, proprio_dim=8, chunk_len=8, action_dim=7, continues=True)

    def __init__(self, host: str, port: int, token: str | None = None, api_key: str | None = None) -> None:
        self.metadata = {"chunk_len": 8, "action_dim": 7, "realtime_chunking": True}

    def reset(self) -> None:
        """An episode begins."""

    def infer(self, obs: dict[str, Any]) -> dict[str, Any]:
        request = read_request(unpack(pack(obs)), self.spec, ImageFitter(size=8))
        assert request.instruction
        return {"actions": np.zeros((8, 7), np.float32)}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("page", RUN)
def test_a_pages_snippets_run_one_after_the_other(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "PolicyClient", Server)
    openpi: Any = ModuleType("openpi_client.websocket_client_policy")
    openpi.WebsocketClientPolicy = Server
    monkeypatch.setitem(sys.modules, "openpi_client", ModuleType("openpi_client"))
    monkeypatch.setitem(sys.modules, "openpi_client.websocket_client_policy", openpi)
    if page == "docs/real_robot_core.md":
        pytest.importorskip("mink")  # the extra ik
    names = dict[str, Any]()
    found = snippets(ROOT / page)
    assert found
    for snippet in found:
        exec(compile(snippet, page, "exec"), names)
