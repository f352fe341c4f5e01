"""integrations/lerobot beside LeRobot itself: found by name, numbered as the benchmark, stepped by `lerobot-eval`."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.sim.tabletop import load_suite
from tests.embodied_rl.test_imports import imported
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake
from tests.stove_actions import SHORT, SUITE, stove_actions

ROOT = Path(__file__).parents[3]
PLUGIN, ENVHUB = ROOT / "integrations" / "lerobot", ROOT / "examples" / "envhub" / "env.py"
LEROBOT = Path(sys.prefix) / "lerobot"
"""Where .ci/install-lerobot puts it."""
INSTALL = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "-q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where lerobot_side.py ran, in a process of its own, with the plugin installed and two tasks of 'LIBERO'."""
    if not (LEROBOT / ".installed").exists() and os.environ.get("CI") != "true":
        pytest.skip(f"LeRobot is not installed: sh .ci/install-lerobot {sys.executable}")
    work = tmp_path_factory.mktemp("lerobot")
    shutil.copytree(PLUGIN, work / "plugin", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    python = [sys.executable, "-m", "pip", "install", *INSTALL, "--target", "installed", "./plugin"]
    subprocess.run(python, cwd=work, check=True, capture_output=True)
    install_fake(work / "cache" / "libero", (OTHER, NAME))
    (stove,) = (task for task in load_suite(SUITE) if task.name == f"{SUITE}/{SHORT}")
    expert = stove_actions(stove.heldout_states[0])
    still = np.zeros_like(expert)
    np.save(work / "actions.npy", np.stack([expert, still], axis=1))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(work / "installed"), str(LEROBOT)]),
        "EMBODIED_RL_CACHE": str(work / "cache"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    script = str(Path(__file__).with_name("lerobot_side.py"))
    command = [sys.executable, script, "actions.npy", str(ENVHUB)]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return work


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "found.json").read_text())


@pytest.mark.process
def test_tasks_have_the_benchmarks_numbers_and_horizons(found: dict[str, Any]) -> None:
    for suite in ("tabletop_goal", "tabletop_long"):
        tasks = [[task.name.partition("/")[2], task.max_episode_steps] for task in load_suite(suite)]
        assert found["tabletop"][suite] == {str(number): task for number, task in enumerate(tasks)}
    assert list(found["tabletop"]) == ["tabletop_long", "tabletop_goal"]
    (stove,) = (task for task in found["tabletop"][SUITE].values() if task[0] == SHORT)
    assert found["alone"] == {f"{SUITE}/{SHORT}": {"0": stove}}, "a task by its name, without the rest of its suite"
    tasks = [[name.partition("/")[2], 300] for name in (OTHER, NAME)]  # LeRobot's own horizon of libero_goal
    assert found["libero"] == {"libero_goal": {str(number): task for number, task in enumerate(tasks)}}


@pytest.mark.process
def test_lerobots_rollout_leads_where_the_actions_lead_without_it(found: dict[str, Any]) -> None:
    """An expert's episode ends early and waits for the other, which stands still until the horizon."""
    rollout = found["rollout"]
    assert rollout["words"] == ["turn on the stove"]
    alone, within = rollout["lengths"]
    assert alone == within
    assert alone[0] < alone[1] == 150
    assert rollout["successes"] == [[True, False], [True, False]]
    assert rollout["rewards"] == [1.0, 0.0]
    assert rollout["same_pictures"]
    assert rollout["shapes"] == {
        "observation.images.image": [3, 32, 32],
        "observation.images.image2": [3, 32, 32],
        "observation.state": [8],
    }


@pytest.mark.process
def test_a_policy_of_lerobots_is_evaluated_by_its_own_command(folder: Path, found: dict[str, Any]) -> None:
    assert found["features"] == {
        "action": [7],
        "observation.state": [8],
        "observation.images.image": [3, 16, 16],
        "observation.images.image2": [3, 16, 16],
    }
    info = json.loads((folder / "eval" / "eval_info.json").read_text())
    (task,) = info["per_task"]
    assert task["task_group"] == SUITE
    assert info["overall"]["n_episodes"] == len(task["metrics"]["successes"]) == 3
    assert all((folder / video).stat().st_size > 0 for video in task["metrics"]["video_paths"])


@pytest.mark.process
def test_what_does_not_fit_is_refused_in_a_line(found: dict[str, Any]) -> None:
    said = [
        "env.task_ids: suite 'tabletop_goal' has tasks 0 to 6, and no 99.",
        "env.fps 30: suite 'tabletop_goal' has 20; leave it out.",
        "env.options has 'tasks': give it as --env.task_ids.",
        "unknown key 'env.no_such'",
        "Did you mean 'tabletop_goal'?",
        "are (1, 8, 7, 20.0), and must be (2, 8, 7, 20)",
    ]
    assert [part in line and "\n" not in line for part, line in zip(said, found["refused"], strict=True)] == [True] * 6


@pytest.mark.process
def test_the_file_for_the_hub_is_opened_as_lerobot_opens_it(found: dict[str, Any]) -> None:
    assert found["hub"]["numbered"] == {SUITE: found["tabletop"][SUITE]}
    assert found["hub"]["shape"] == [1, 256, 256, 3]


def test_the_file_for_the_hub_needs_embodied_rl_alone() -> None:
    tops = {name.partition(".")[0] for name in imported(ast.parse(ENVHUB.read_text()))}
    assert tops - sys.stdlib_module_names == {"embodied_rl"}


def test_the_plugin_declares_what_it_imports() -> None:
    """Its name has no dash: LeRobot imports a distribution by its own name."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    (package,) = (path.parent for path in PLUGIN.glob("*/__init__.py"))
    assert project["name"] == package.name
    assert project["name"].startswith("lerobot_env_")
    found = {name.partition(".")[0] for path in package.glob("*.py") for name in imported(ast.parse(path.read_text()))}
    declared = {re.split(r"[\[>]", line)[0].replace("-", "_") for line in project["dependencies"]}
    assert found - sys.stdlib_module_names - {package.name} == declared
