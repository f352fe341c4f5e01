"""No MUJOCO_LOG.TXT appears where a user works; warnings still reach the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]

_UNSTABLE = """
import mujoco
xml = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
model = mujoco.MjModel.from_xml_string(xml)
data = mujoco.MjData(model)
data.qvel[0] = 1e30
mujoco.mj_step(model, data)
"""


def warn(first: str, folder: Path) -> str:
    """What a program that begins with `first` and then warns prints to stderr, run in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", first + _UNSTABLE],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def test_warnings_go_to_the_terminal_only(tmp_path: Path) -> None:
    assert "huge value in QVEL" in warn("import embodied_rl.sim.bddl", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "huge value in QVEL" in warn("", tmp_path)  # by itself MuJoCo writes it: the test would see that
    assert (tmp_path / "MUJOCO_LOG.TXT").is_file()


_OTHER = """
import ctypes
from mujoco import _functions
from embodied_rl.sim.mujoco_log import leave_divergence_to_results
leave_divergence_to_results()
ctypes.CDLL(_functions.__file__).mju_warning(b"too many contacts")
"""


def test_an_engine_that_reports_divergence_silences_nothing_else(tmp_path: Path) -> None:
    assert warn(_OTHER, tmp_path) == "MuJoCo: too many contacts\n"
