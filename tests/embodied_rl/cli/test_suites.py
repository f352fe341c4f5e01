"""Suites and tasks are named by the same words wherever a command takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli import demo, main
from embodied_rl.cli.parse import flag_words
from embodied_rl.cli.select import select
from embodied_rl.cli.suites import as_positional, with_suite
from embodied_rl.errors import UserError
from embodied_rl.utils.words import counted


@pytest.mark.parametrize("words", ["tabletop_goal", "tabletop --suite goal", "tabletop --suite=tabletop_goal"])
def test_a_suite_by_each_of_its_names(words: str) -> None:
    found = [*with_suite(words.split()), "--seed", "1"]
    assert (found[0], flag_words(found)) == ("tabletop", ["--suite", "--seed"])
    assert "tabletop_goal" in " ".join(found).replace("=", " ").split()
    assert as_positional([*words.split(), "--out", "d"]) == ["tabletop_goal", "--out", "d"]


def test_other_words_stay_as_they_are() -> None:
    for words in ([], ["--suite", "goal"], ["gymnasium", "--suite", "goal"], ["tabletop", "--suite", "goals"]):
        assert with_suite(words) == words
    assert with_suite(["libero", "--suite", "long"]) == ["libero", "--suite", "libero_10"]
    assert with_suite(["libero_90"]) == ["libero", "--suite", "libero_90"]
    assert as_positional(["tabletop", "--out", "d"]) == ["tabletop", "--out", "d"]
    with pytest.raises(UserError, match="leave --suite out"):
        with_suite(["tabletop_goal", "--suite=spatial"])


@pytest.mark.parametrize("words", ["tabletop_goal", "tabletop --suite goal", "tabletop --suite tabletop_goal"])
@pytest.mark.parametrize("task", ["--task turn_on_the_stove", "--tasks turn_on_the_stove", "--task=turn_on_the_stove"])
def test_the_same_words_in_every_command(
    words: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def note(suite: Any, tasks: Any) -> int:
        asked.append((suite, tuple(tasks)))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("embodied_rl.jobs.evaluate.run", lambda _, command, *__, **___: note(*_of(command)))
    monkeypatch.setattr("embodied_rl.jobs.demo.run", lambda _, suite, tasks, *__, **___: note(suite, tasks))
    monkeypatch.setattr("embodied_rl.jobs.collect.run", lambda command, _: not note(command.suite, command.tasks))
    assert demo.main([*words.split(), *task.split()]) == 0
    for command in ("eval", "collect"):
        more = ["--out", str(tmp_path / "d")] if command == "collect" else []
        assert main([command, *words.split(), *task.split(), *more]) == 0
    config = select([*words.split(), *task.split()]).config
    assert config is not None
    note(config.suite, config.tasks)
    assert asked == [("tabletop_goal", ("turn_on_the_stove",))] * 4


def _of(command: Any) -> tuple[str, tuple[str, ...]]:
    return command.suite, command.tasks


def test_what_goes_with_a_resume_is_named_as_it_was_typed() -> None:
    for words in (["--task", "x"], ["--tasks", "x"], ["tabletop_goal"]):
        with pytest.raises(UserError, match=rf"so '{words[0]}' does not apply"):
            select([*words, "--resume", "runs/a"])


def test_one_of_a_thing_has_no_plural() -> None:
    assert [counted(number, "task") for number in (0, 1, 2)] == ["0 tasks", "1 task", "2 tasks"]
    assert counted(2, "watched process") == "2 watched processes"
