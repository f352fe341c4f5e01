"""Every command in README and docs is one that the program takes: parsed as it stands, not run."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli import COMMANDS, take_imports
from embodied_rl.errors import UserError
from embodied_rl.utils.plugins import import_modules
from tests.hub import opened
from tests.registered import modules_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PARSERS = ("parse", "select")


class Parsed(Exception):
    """The words were understood; nothing of the work has begun."""


def commands(page: str) -> Iterator[list[str]]:
    """The words after `embodied-rl` of each command in a fenced block, or alone in a cell of a table."""
    for line in re.findall(r"\| `(embodied-rl [^`]+)` \|", page):
        yield shlex.split(line)[1:]
    for block in re.findall(r"```(?:bash)?\n(.*?)```", page, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if re.match(r"\s*embodied-rl [a-z]+", line):
                yield shlex.split(line, comments=True)[1:]


def understood(words: list[str], patch: pytest.MonkeyPatch) -> bool:
    """Whether the command's own parser takes `words`."""
    own = "doctor_libero" if words[:2] == ["doctor", "libero"] else words[0]
    module = importlib.import_module(f"embodied_rl.cli.{own}")
    words = words[1:] if own != words[0] else words
    if words[0] == "assets":
        module._parser().parse_args(words[1:])
        return True

    def stop(real: Any) -> Any:
        def parser(*arguments: Any, **options: Any) -> Any:
            real(*arguments, **options)
            raise Parsed

        return parser

    for name in PARSERS:
        if hasattr(module, name):
            patch.setattr(module, name, stop(getattr(module, name)))
    try:
        module.main(words[1:])
    except (Parsed, SystemExit):  # --help leaves by itself
        return True
    return "--resume" in words  # an evaluation is continued without further options


ALL = [(page.relative_to(ROOT), words) for page in PAGES for words in commands(page.read_text(encoding="utf-8"))]


def test_there_are_commands_of_every_kind() -> None:
    assert {words[0] for _, words in ALL} >= set(COMMANDS) - {"plan"}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """OWNER/NAME is there: a published policy, of which a command may ask what it is."""
    folder = tmp_path_factory.mktemp("hub")
    (folder / "config.json").write_text('{"model_type": "openvla"}')
    with opened(folder / "cache") as hub:
        hub.add("models/OWNER/NAME", folder)
        yield


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("page", "words"), ALL, ids=[f"{page}: {' '.join(words)}"[:100] for page, words in ALL])
def test_a_documented_command_is_understood(
    page: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words[0] in COMMANDS
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()  # as where a run was trained
    for index, word in enumerate(words[:-1]):
        if word == "--config":
            (tmp_path / "config.yaml").write_text("seed: 1\n")
            words = [*words[: index + 1], str(tmp_path / "config.yaml"), *words[index + 2 :]]
    if words[:2] == ["eval", "--resume"]:
        with pytest.raises(UserError, match=r"is not|no evaluation|was not|has no"):
            understood(words, monkeypatch)
        return
    words, modules = take_imports(words)
    with modules_of(ROOT / "examples") if modules else nullcontext():
        import_modules(modules)
        assert understood(words, monkeypatch)


@pytest.mark.parametrize("line", ["embodied-rl train tabletop --no-such-option 1", "embodied-rl eval --checkpont x"])
def test_a_command_that_is_no_more_is_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (words,) = commands(f"```bash\n{line}\n```")
    with pytest.raises(UserError, match="unknown option"):
        understood(words, monkeypatch)
