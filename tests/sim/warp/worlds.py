"""Small suites for the tests of the MuJoCo Warp backend, which is slow on a CPU: one scene, short episodes."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch

from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.tabletop import load_suite

MISSING = find_spec("mujoco_warp") is None and os.environ.get("CI") != "true"
needs_warp = pytest.mark.skipif(MISSING, reason="mujoco-warp is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def short_tasks(steps: int = 150, count: int = 2) -> list[MujocoTask]:
    """The first tasks of tabletop_spatial, which share one model, with this horizon."""
    return [replace(task, max_episode_steps=steps) for task in load_suite("tabletop_spatial")[:count]]
