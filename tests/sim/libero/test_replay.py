"""Our kernel against trajectories of LIBERO's official code (shared golden data)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import mujoco
import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.engine.goal import compile_predicates
from embodied_rl.sim.engine.world import World, find_robot
from embodied_rl.sim.libero.replay import goal_of, replay
from embodied_rl.types import Array

_SHARED = Path(os.environ.get("EMBODIED_RL_SHARED", Path(__file__).resolve().parents[3].parent / "shared"))
_GOLDEN = _SHARED / "golden" / "given"
_TASKS = sorted(path.stem for path in _GOLDEN.glob("*.npz"))
if not _TASKS:
    _REASON = f"no golden data in {_GOLDEN}; set EMBODIED_RL_SHARED"
    if os.environ.get("CI") == "true":  # an empty list of tasks would pass as no tests at all
        pytest.fail(_REASON, pytrace=False)
    pytest.skip(_REASON, allow_module_level=True)


def _load(task: str) -> dict[str, Array]:
    with np.load(_GOLDEN / f"{task}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def _episode(arrays: dict[str, Array], k: int, steps: int | None = None) -> dict[str, Array]:
    """Episode k, its first `steps` actions."""
    episode = {name[4:]: value for name, value in arrays.items() if name.startswith(f"ep{k}_")}
    episode |= {name: value for name, value in arrays.items() if name.startswith("model_") or name == "meta_json"}
    episode["action"] = episode["action"][:steps]
    return episode


def test_golden_data_is_there() -> None:
    assert len(_TASKS) == 14, f"expected the 14 given tasks in {_GOLDEN}"


@pytest.mark.parametrize("k", range(3))
@pytest.mark.parametrize("task", _TASKS)
def test_first_ten_steps(task: str, k: int) -> None:
    episode = _episode(_load(task), k, steps=10)
    ours = replay(_GOLDEN / f"{task}.xml", episode)
    for name in ("qpos", "qvel", "obs_eef_pos", "obs_eef_quat", "obs_joint_pos", "obs_gripper_qpos", "goal_pos",
                 "goal_ori", "gripper_current_action", "time"):  # fmt: skip
        np.testing.assert_allclose(ours[name], episode[name][:10], rtol=0, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(ours["ctrl_sub"], episode["ctrl_sub"][:10], rtol=0, atol=1e-7)
    for name in ("pred", "success", "reward", "ncon"):
        np.testing.assert_array_equal(ours[name], episode[name][:10], err_msg=name)


@pytest.mark.parametrize("task", _TASKS)
def test_success_runs_in_full(task: str) -> None:
    """ep2 keeps clear of chaotic contacts, so all 80 steps agree; it holds the rewards."""
    episode = _episode(_load(task), 2)
    ours = replay(_GOLDEN / f"{task}.xml", episode)
    np.testing.assert_allclose(ours["qpos"], episode["qpos"], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(ours["pred"], episode["pred"])
    np.testing.assert_array_equal(ours["reward"], episode["reward"])


@pytest.mark.parametrize("task", _TASKS)
def test_predicate_states(task: str) -> None:
    arrays = _load(task)
    model = mujoco.MjModel.from_xml_path(str(_GOLDEN / f"{task}.xml"))
    goal = compile_predicates(goal_of(json.loads(str(arrays["meta_json"]))), model)
    world = World(model, find_robot(model), goal, "exact")
    for qpos, expected in zip(arrays["ps_qpos"], arrays["ps_pred"], strict=True):
        world.reset(np.concatenate([[0.0], qpos, np.zeros(model.nv)]))
        np.testing.assert_array_equal(world.judge(), expected)


def _fresh_first_substep(episode: dict[str, Array]) -> None:
    episode["stale_new_update"] = np.array(True)


def _other_posture(episode: dict[str, Array]) -> None:
    episode["ctl_initial_joint"] = episode["stale_joint_pos"] + 0.01


@pytest.mark.parametrize("damage", [_fresh_first_substep, _other_posture])
def test_each_input_matters(damage: Callable[[dict[str, Array]], None]) -> None:
    task = _TASKS[0]
    episode = _episode(_load(task), 0, steps=3)
    damage(episode)
    ours = replay(_GOLDEN / f"{task}.xml", episode)
    assert np.abs(ours["qpos"] - episode["qpos"][:3]).max() > 1e-9


def test_missing_input_is_named() -> None:
    episode = _episode(_load(_TASKS[0]), 0)
    del episode["ctl_initial_joint"]
    with pytest.raises(UserError, match="ctl_initial_joint"):
        replay(_GOLDEN / f"{_TASKS[0]}.xml", episode)
