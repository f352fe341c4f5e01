"""Demonstrations that begin where a policy left the task, through the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.cli import main
from embodied_rl.data.layout import NAMESPACE
from embodied_rl.data.lerobot import load
from embodied_rl.data.metadata import load_info
from embodied_rl.data.start_bank import EVERY, FILE
from embodied_rl.sim.mujoco.episodes import load_bank

TASK = "pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate"
COMMAND = ["collect", "tabletop_spatial", "--task", TASK, "--episodes-per-task", "2", "--workers", "1"]


def test_the_shipped_policy_begins_and_the_expert_ends(tmp_path: Path) -> None:
    out = tmp_path / "mended"
    assert main([*COMMAND, "--roll-in", "shipped", "--start-bank", "--out", str(out)]) == 0
    made = load_info(out)[NAMESPACE]
    assert "control steps" in made["roll_in"]
    assert "sha256" in made["roll_in"]
    data, bank = load(out), load_bank(out / FILE)
    assert len(data) + json.dumps(made["failures"]).count("by itself") == 2
    recorded = -(-np.diff(data.starts) // EVERY)
    assert len(bank[f"tabletop_spatial/{TASK}"]) > recorded.sum(), "and the states on the policy's way"


def test_a_policy_that_sees_other_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*COMMAND, "--roll-in", "shipped", "--image-size", "32", "--out", str(tmp_path / "d")]
    assert main(words) == 2
    assert "add --image-size 64" in capsys.readouterr().err
