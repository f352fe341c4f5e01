"""The check of eras: what it measures of a task, and when the published era has kept its promises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.benchmarks.lab import era_check
from embodied_rl.benchmarks.lab.era_check import keeps_promises, summarise, table
from embodied_rl.benchmarks.lab.era_measure import TaskResult, measure
from embodied_rl.errors import UserError
from embodied_rl.sim.libero.tasks import load_task
from embodied_rl.sim.mujoco.env import Env, find_robot
from tests import era_library
from tests.sim.libero.exported_tasks import NAME, install_fake

GOOD = TaskResult(
    task="libero_spatial/a",
    off_mm={"current": [1390.4, 0.2], "mujoco-3.3": [0.02, 0.001]},
    holds={"current": [(False, True), (True, True)], "mujoco-3.3": [(True, True), (True, True)]},
    picked={"current": [False, False, False], "mujoco-3.3": [True, True, True]},
    picked_old=[True, True, False],
    grey={"current": 36.0, "mujoco-3.3": 0.1},
)
COST = {"current": 2.0, "mujoco-3.3": 2.2}


def test_the_table_says_what_was_found() -> None:
    text = "\n".join(table(summarise([GOOD, replace(GOOD, task="libero_spatial/b")], COST)))
    for row in (
        "| tasks with a body > 1 mm off | 2 of 2 | 0 |",
        "| states with one | 2 of 4 | 0 |",
        "| largest difference, mm | 1390 | 0.02 |",
        "| 'on' facts of the beginning that differ | 2 of 4 | 0 |",
        "| scripted picks of 6 (3.3.2: 4) | 0 | 6 |",
        "| pictures of libero_object, mean difference of 255 | 36.00 | 0.10 |",
        "| CPU time of a control step | 1 | 1.10 |",
    ):
        assert row in text


@pytest.mark.parametrize(
    ("change", "cost", "kept"),
    [
        ({}, COST, True),
        ({"off_mm": {"current": [0.0], "mujoco-3.3": [1.1]}}, COST, False),
        ({"picked": {"current": [], "mujoco-3.3": [True] * 5}}, COST, False),
        ({"grey": {"current": 36.0, "mujoco-3.3": 0.6}}, COST, False),
        ({"grey": {}}, COST, True),
        ({}, {"current": 2.0, "mujoco-3.3": 2.6}, False),
    ],
)
def test_promises(change: dict[str, Any], cost: dict[str, float], kept: bool) -> None:
    assert keeps_promises(summarise([replace(GOOD, **change)], cost)) is kept


def test_pictures_of_the_named_suite_are_recorded_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []

    def record_official(official: Any, names: list[str], *_: Any) -> Iterator[str]:
        assert official.scratch == tmp_path / "frames"
        for name in names:
            recorded.append(name)
            yield name

    def measured(root: Path, name: str, arrays: Any, steps: int, frames: Path | None) -> TaskResult:
        assert (frames is None) == (name == "libero_spatial/a")
        return replace(GOOD, task=name, grey={} if frames is None else GOOD.grey)

    names = ["libero_spatial/a", "libero_object/b"]
    monkeypatch.setattr(era_check, "Environment", lambda *_, **__: SimpleNamespace(build=lambda: None))
    monkeypatch.setattr(era_check, "fetch_assets", lambda *_: (tmp_path, ""))
    monkeypatch.setattr(era_check, "record", lambda *_: None)
    monkeypatch.setattr(era_check, "record_official", record_official)
    monkeypatch.setattr(era_check.era_measure, "measure", measured)
    monkeypatch.setattr(era_check.era_measure, "cost", lambda *_: COST)
    exported_tasks = {name: {"name": name} for name in names}
    monkeypatch.setattr(era_check, "read_exported", lambda _, name: exported_tasks[name])
    for name in names:
        (tmp_path / "recorded" / name).parent.mkdir(parents=True)
        np.savez(tmp_path / "recorded" / f"{name}.npz", settled=np.zeros(1))
    found = era_check.run(None, tmp_path, tmp_path, names)
    assert recorded == ["libero_object/b"]
    assert found["eras"]["current"]["grey"] == 36.0

    again: list[str] = []

    def measured_again(root: Path, name: str, *rest: Any) -> TaskResult:
        again.append(name)
        return measured(root, name, *rest)

    monkeypatch.setattr(era_check.era_measure, "measure", measured_again)
    era_check.run(None, tmp_path, tmp_path, names)
    assert again == []
    exported_tasks[names[0]]["instruction"] = "exported again"
    era_check.run(None, tmp_path, tmp_path, names)
    assert again == [names[0]], "what was measured on another exported task is not used"


def test_a_task_is_compared_with_its_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := era_library.missing():
        pytest.skip(reason)
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(era_library.CACHE))
    install_fake(tmp_path, (NAME,))
    task = load_task(tmp_path, NAME, "mujoco-3.3")
    model = task.build_physics()
    env = Env(model, find_robot(model), None, "exact")
    actions = np.tile(np.array([0, 0, 0, 0, 0, 0, -1], np.float32), (3, 1))
    assert task.start is not None
    settled = []
    for state in range(2):
        env.reset(task.init_states[state], task.start)
        env.run(actions)
        settled.append(env.data.xpos.copy())
    recorded = {
        **{f"start_{key}": np.asarray(value) for key, value in task.start.items()},
        "fixed": np.hstack([model.body_pos, model.body_quat]),
        "settled": np.array(settled),
        "bodies": np.array([model.body(i).name for i in range(model.nbody)]),
        "on": np.array("[]"),
        "holds": np.zeros((2, 0), bool),
    }
    assert measure(tmp_path, NAME, recorded, 3, None).off_mm["mujoco-3.3"] == [0.0, 0.0]
    recorded["settled"][1, -1, 0] += 0.002
    assert measure(tmp_path, NAME, recorded, 3, None).off_mm["mujoco-3.3"] == pytest.approx([0.0, 2.0])
    recorded["fixed"][-1, 0] += 0.01
    with pytest.raises(UserError, match="not the one that was recorded"):
        measure(tmp_path, NAME, recorded, 3, None)
