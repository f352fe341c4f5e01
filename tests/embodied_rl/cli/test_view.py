"""`embodied-rl view`: what its words mean, and one line for what cannot be looked at."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli import main
from embodied_rl.config.env import MujocoConfig
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.jobs.view import Address


def asked(words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, BenchmarkCommand, Address]:
    found: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr("embodied_rl.jobs.view.run", lambda *asked: found.append(asked))
        assert main(["view", *words.split()]) == 0
    return found[0]


def test_a_suite_is_viewed_as_it_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, command, address = asked("tabletop --suite goal --task turn_on_the_stove --seed 3", monkeypatch)
    assert benchmark == "tabletop"
    wanted = {"checkpoint": "shipped", "suite": "tabletop_goal", "tasks": ("turn_on_the_stove",), "seed": 3}
    assert dataclasses.asdict(command).items() >= wanted.items()
    assert (command.protocol, command.at_end, command.states_per_task) == ("native", False, None)
    assert isinstance(command.env, MujocoConfig)
    assert command.env.num_envs == 1
    assert address == Address("127.0.0.1", 8080, browser=True)


@pytest.mark.parametrize(
    ("words", "suite", "checkpoint"),
    [
        ("", "tabletop_spatial", "shipped"),
        ("tabletop_object", "tabletop_object", "shipped"),
        ("libero_object", "libero_object", "shipped:libero_object"),
        ("shipped:libero_object", "libero_object", "shipped:libero_object"),
        ("libero --checkpoint shipped:libero_object", "libero_object", "shipped:libero_object"),
        ("tabletop --checkpoint shipped:libero_object", "tabletop_spatial", "shipped:libero_object"),
    ],
)
def test_what_is_named_says_the_suite_and_the_policy(
    words: str, suite: str, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, command, _ = asked(words, monkeypatch)
    assert (command.suite, command.checkpoint) == (suite, checkpoint)


def test_a_run_is_viewed_where_it_was_trained(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, command, address = asked(f"{finished} --port 0 --no-browser --host 0.0.0.0", monkeypatch)
    assert (command.suite, command.checkpoint) == ("tabletop_object", str(finished))
    assert address == Address("0.0.0.0", 0, browser=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("tabletpo", "'tabletpo' is neither a suite nor a folder."),
        ("no/such/run", "'no/such/run' is neither a suite nor a folder."),
        ("shipped --checkpoint x", "'shipped' is no suite, and --checkpoint names the policy already."),
        ("maniskill", "view draws scenes of MuJoCo, those of tabletop and libero: 'maniskill' has none."),
        ("gymnasium --task Pendulum-v1", "'gymnasium' has none."),
        ("tabletop --port 70000", "--port must lie in 0 to 65535, got 70000."),
        ("tabletop --seed -1", "--seed must lie in 0"),
        ("tabletop --task no_such", "has no task 'no_such'"),
        ("tabletop --host 203.0.113.1", "name another --port or --host"),
    ],
)
def test_bad_input_is_one_line(
    words: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("embodied_rl.jobs.view._page_class", lambda: None)
    assert main(["view", *words.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_without_its_library_it_says_which_extra_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "embodied_rl.jobs.view_page", raising=False)
    monkeypatch.setitem(sys.modules, "trimesh", None)
    assert main(["view", "tabletop"]) == 2
    assert "view needs trimesh: pip install 'embodied-rl[view]'" in capsys.readouterr().err
