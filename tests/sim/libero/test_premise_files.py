"""Premises on the disk, and what becomes of a task's training states."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.libero import premise_cache, premise_files
from embodied_rl.sim.libero.exported import exported_path
from embodied_rl.sim.libero.premise_cache import find_premises
from embodied_rl.sim.libero.premise_files import premise_path, read_premises, write_premises
from embodied_rl.sim.libero.premises import Failure, Premises
from embodied_rl.sim.libero.tasks import LiberoTask, leave_out, load_task, tasks_fingerprint
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake

THROWN = Failure("kept", "bowl 1 falls off the table (0.90 m lower)")
FOUND = Premises(100, {3: (THROWN,), 52: (THROWN, Failure("rests", "it moves"))}, (3, 52), ("bowl 1 is on spoon 1",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    install_fake(tmp_path)
    return tmp_path


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks that were really checked, by a check that takes no time."""
    names: list[str] = []

    def check(task: LiberoTask, bddl: str) -> Premises:
        names.append(task.name)
        return FOUND

    monkeypatch.setattr(premise_cache, "check", check)
    return names


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_premises(tmp_path, "suite/x", "abc", "current", FOUND)
    assert read_premises(tmp_path, "abc", "current") == FOUND
    assert read_premises(tmp_path, "abc", "mujoco-3.3") is None, "another era"
    assert read_premises(tmp_path, "abd", "current") is None, "another exported task"


def test_what_other_rules_found_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_premises(tmp_path, "suite/x", "abc", "current", FOUND)
    monkeypatch.setattr(premise_files, "RULES", 0)
    assert read_premises(tmp_path, "abc", "current") is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"rules": 1}', '{"rules": 1, "failures": []}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = premise_path(tmp_path, "abc", "current")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match=r"abc\.json.*remove it"):
        read_premises(tmp_path, "abc", "current")


def test_they_are_found_once(root: Path, checked: list[str]) -> None:
    tasks, told = [load_task(root, name) for name in (NAME, OTHER)], []
    found, trouble = find_premises(root, tasks, 2, lambda done, total: told.append((done, total)))
    assert (found, trouble) == ({NAME: FOUND, OTHER: FOUND}, "")
    assert sorted(checked) == sorted([NAME, OTHER])
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert find_premises(root, tasks, 2)[0] == found
    assert len(checked) == 2
    find_premises(root, [replace(tasks[0], era="mujoco-3.3"), replace(tasks[1], fingerprint="other")])
    assert len(checked) == 4


def test_a_cache_of_others_is_no_obstacle(root: Path, checked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(premise_cache, "write_premises", refuse)
    found, trouble = find_premises(root, [load_task(root, NAME)])
    assert found == {NAME: FOUND}
    assert trouble == f"{root / 'premises'}: Read-only file system"
    assert load_task(root, NAME).left_out is None


def test_what_was_finished_is_kept_when_a_check_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_is_kept = threading.Event()

    def check(task: LiberoTask, bddl: str) -> Premises:
        if task.name == NAME:
            return FOUND
        first_is_kept.wait(900)
        raise KeyboardInterrupt

    def keep(*given: object) -> None:
        write_premises(*given)  # type: ignore[arg-type]
        first_is_kept.set()

    monkeypatch.setattr(premise_cache, "check", check)
    monkeypatch.setattr(premise_cache, "write_premises", keep)
    tasks = [load_task(root, name) for name in (NAME, OTHER)]
    with pytest.raises(KeyboardInterrupt):
        find_premises(root, tasks, 2)
    assert load_task(root, NAME).left_out == (52,)
    assert load_task(root, OTHER).left_out is None


def test_training_leaves_out_what_nobody_can_solve_and_evaluation_nothing(root: Path) -> None:
    before, stamp = load_task(root, NAME), tasks_fingerprint(root, [NAME])
    text = exported_path(root, NAME).read_text()
    assert (before.left_out, before.train_states) == (None, range(50, 100))
    write_premises(root, NAME, before.fingerprint, "current", FOUND)
    task = load_task(root, NAME)
    assert task.left_out == (52,)
    assert list(task.train_states) == [50, 51, *range(53, 100)]
    assert list(task.heldout_states) == list(range(50)), "state 3 can't be solved and stays"
    assert (task.fingerprint, tasks_fingerprint(root, [NAME])) == (before.fingerprint, stamp)
    assert exported_path(root, NAME).read_text() == text
    assert np.array_equal(task.init_states, before.init_states), "numbers of states stay what they were"


def test_leaving_out_twice_is_leaving_out_once(root: Path) -> None:
    task = leave_out(load_task(root, NAME), FOUND)
    again = leave_out(task, FOUND)
    assert (again.train_states, again.left_out) == (task.train_states, task.left_out)
    nothing = leave_out(load_task(root, NAME), replace(FOUND, unsolvable=()))
    assert (list(nothing.train_states), nothing.left_out) == (list(range(50, 100)), ())
    evaluated = leave_out(replace(load_task(root, NAME), train_states=range(50)), FOUND)
    assert (list(evaluated.train_states), evaluated.left_out) == (list(range(50)), ()), "official states stay"


def test_the_file_says_which_task_it_is_about(root: Path, checked: list[str]) -> None:
    task = load_task(root, NAME)
    find_premises(root, [task])
    assert json.loads(premise_path(root, task.fingerprint, "current").read_text())["task"] == NAME
