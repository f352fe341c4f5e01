"""Python in README and docs: every name is defined, what is imported is there, and every snippet runs."""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest

import embodied_rl
from embodied_rl.real_robot import client
from embodied_rl.real_robot.client.wire import pack, unpack
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.observations import PolicySpec, read_request
from embodied_rl.sim.libero import tasks as libero
from embodied_rl.sim.mujoco import vec_env

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {
    "README.md": "",
    "docs/getting-started.md": "",
    "docs/gymnasium.md": "3 False",
    "docs/libero.md": "",
    "docs/real_robot.md": "realtime_chunking",
    "docs/real_robot_reference.md": "'outcome': 'allow'",
    "docs/simulators.md": "",
}
"""Pages whose snippets run here, and what they print among other things."""
ELSEWHERE = {
    "docs/aloha.md": "tests/sim/aloha/test_page.py",
    "docs/views.md": "tests/sim/views/test_trainers.py",
    **{f"docs/extend/{path.name}": "tests/test_examples.py" for path in (ROOT / "docs" / "extend").glob("*.md")},
}
"""Pages whose snippets run beside what they show."""
NEEDS = {"docs/real_robot_reference.md": "mink", "docs/simulators.md": "envpool"}
"""Packages that are not everywhere, but in CI."""


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


def stand_in(patch: pytest.MonkeyPatch, page: str) -> None:
    """For a policy server, openpi's client, LIBERO's tasks, and `erl.train`, which would take minutes."""
    patch.setattr(client, "PolicyClient", Server)
    openpi: Any = ModuleType("openpi_client.websocket_client_policy")
    openpi.WebsocketClientPolicy = Server
    patch.setitem(sys.modules, "openpi_client", ModuleType("openpi_client"))
    patch.setitem(sys.modules, "openpi_client.websocket_client_policy", openpi)
    patch.setattr(embodied_rl, "train", create_autospec(embodied_rl.train))
    if page == "docs/libero.md":
        for name in ("tasks", "load_task", "load_suite", "tasks_fingerprint"):
            patch.setattr(libero, name, create_autospec(getattr(libero, name), return_value=("libero_spatial/a",)))
        patch.setattr(vec_env, "MujocoVecEnv", create_autospec(vec_env.MujocoVecEnv))


def briefly(code: str) -> str:
    """With fewer envs and episodes; everything else as it stands."""
    return re.sub(r"\b(num_envs|episodes)=\d+", r"\1=2", code)


def test_every_snippet_is_run_somewhere() -> None:
    assert {str(page.relative_to(ROOT)) for page in WITH} == {*RUN, *ELSEWHERE}
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())
    marked = [line for page in PAGES for line in page.read_text(encoding="utf-8").splitlines() if "```py" in line]
    assert set(marked) == {"```python"}, "other words, or an indent, are not found"


@pytest.mark.parametrize("page", RUN)
def test_a_pages_snippets_run_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stand_in(monkeypatch, page)
    if find_spec(NEEDS.get(page, "numpy")) is None and os.environ.get("CI") != "true":
        pytest.skip(f"{NEEDS[page]} is not installed")
    names = dict[str, Any]()
    for snippet in snippets(ROOT / page):
        exec(compile(briefly(snippet), page, "exec"), names)
    assert RUN[page] in capsys.readouterr().out


def test_a_snippet_with_a_wrong_call_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "docs/libero.md")
    for line in ("erl.train('x', [], [])", "libero.load_task()"):
        with pytest.raises(TypeError):
            exec(line, {"erl": embodied_rl, "libero": libero})
