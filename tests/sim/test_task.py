"""A task's description is the same for every simulator."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.sim import task as task_module
from embodied_rl.sim.task import TaskSpec


def test_the_description_of_a_task_needs_no_simulator() -> None:
    tree = ast.parse(Path(task_module.__file__).read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree))
    assert modules == {"__future__", "collections.abc", "dataclasses", "embodied_rl.types"}


def test_a_task_of_another_simulator_needs_no_models() -> None:
    states = np.zeros((3, 0))
    task = TaskSpec(
        name="toy/reach",
        suite="toy",
        instruction="reach",
        max_episode_steps=8,
        init_states=states,
        train_states=range(2),
        heldout_states=range(2, 3),
    )
    assert not set(task.train_states) & set(task.heldout_states)
    with pytest.raises(AttributeError):
        task.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
