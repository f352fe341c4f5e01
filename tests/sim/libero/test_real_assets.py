"""LIBERO's own tasks, exported here and now by the official code from the assets on the package index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.sim.libero.install.benchmarks import LIBERO
from embodied_rl.sim.libero.install.state import status, verify
from embodied_rl.sim.libero.tasks import HORIZONS, load_task
from tests.sim.libero.conftest import REAL_TASKS


def test_one_task_of_each_suite_is_installed_whole(libero_root: Path) -> None:
    assert [(row.installed, row.approximate, row.stale) for row in status(libero_root, LIBERO)] == [(1, 0, 0)] * 5
    assert sum(row.total for row in status(libero_root, LIBERO)) == LIBERO.tasks
    assert verify(libero_root, LIBERO, lambda done, total: None) == []


@pytest.mark.parametrize("name", REAL_TASKS)
def test_a_real_task_is_what_the_documentation_says(libero_root: Path, name: str) -> None:
    task = load_task(libero_root, name)
    physics, visual = task.build_physics(), task.build_visual()
    assert task.max_episode_steps == HORIZONS[task.suite]
    assert (task.heldout_states, task.train_states) == (range(50), range(50, len(task.init_states)))
    assert len(np.unique(task.init_states, axis=0)) == len(task.init_states) >= 100
    assert (physics.nq, physics.ntex, physics.nlight) == (visual.nq, 0, 0)
    assert visual.ntex > 0
    files = [path for path in (visual.paths + physics.paths).split(b"\0") if path]
    assert files  # their names are in the models, and the same wherever these are made
    assert not [path for path in files if path.startswith(b"/")]
    assert task.instruction in task.name.replace("_", " ")
