"""What the command line says about worlds and policies that it opens."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from embodied_rl.factory.scenes import announce_compilation
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.jobs.describe import statistics_words
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.console import _TOLD

SAY = "from embodied_rl.factory.scenes import announce_compilation; announce_compilation()"


@pytest.mark.process
def test_compiling_is_announced_only_before_it_was_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {name: value for name, value in os.environ.items() if name != _TOLD}  # an earlier test may have heard it
    env |= {"NUMBA_CACHE_DIR": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", SAY], env=env, capture_output=True, text=True, check=True).stderr
    assert told.startswith("Compiling the simulator")
    again = (
        f"import os, subprocess, sys; {SAY}; announce_compilation(); subprocess.run([sys.executable, '-c', {SAY!r}])"
    )
    beside = f"import os; os.environ.update(RANK='1', WORLD_SIZE='2'); {SAY}"
    for code, times in ((again, 1), (beside, 0)):
        told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stderr
        assert told.count("Compiling the simulator") == times
    (task,) = load_tasks("tabletop_spatial")[:1]
    with closing(MujocoVecEnv([task], 1)) as worlds:  # compiles here, if nobody did before
        worlds.reset([0], [EpisodeSpec(0, task.name, 0, 0)])
        worlds.step([0], torch.zeros(1, 1, 7))
    monkeypatch.delenv(_TOLD, raising=False)
    announce_compilation()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("key", "suite", "said"),
    [
        ("tabletop_goal", "tabletop_goal", "tabletop_goal"),
        ("tabletop_goal", "tabletop_spatial", "--suite tabletop_goal"),
        ("libero_10_no_noops", "libero_10", "libero_10_no_noops"),
        ("libero_10_no_noops", "libero_goal", "--suite libero_10"),
        ("bridge_orig", "libero_goal", "bridge_orig"),
    ],
)
def test_statistics_of_another_suite_are_named(key: str, suite: str, said: str) -> None:
    line = statistics_words(key, suite)
    assert line.endswith((said, f"{said})"))
    assert ("another suite" in line) is ("--suite" in said)
