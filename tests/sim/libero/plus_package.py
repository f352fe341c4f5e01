"""A small package laid out as LIBERO-plus' is: two tasks of the fake installation, changed in every way."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np

from embodied_rl.sim.libero.install.plus import WHEEL
from tests.sim.libero.exported_tasks import NAME, OTHER, model_task

BASES = [NAME.partition("/")[2], OTHER.partition("/")[2]]
HOME = "view_0_0_100_0_0_initstate_0"
POSES = [[0.1, -0.2, 0.05, -2.3, 0.02, 2.2, 0.9], [-0.1, -0.1, 0.1, -2.5, 0.0, 2.1, 0.7]]
INSTRUCTION = "Switch on the Burner"
LAYOUT = f"{BASES[0]}_moved_level1_sample2"
_INSIDE = "liberoplus/liberoplus/"
_PROBLEM = """
class Fake(Base):
    def __init__(self, **kwargs):
        kwargs.update({"robots": [f"%s{name}" for name in kwargs["robots"]]})

    def _setup_camera(self, arena):
        pos_av = [0.65861, 0.0, 1.61035]
        quat_av = [0.638, 0.3048, 0.3048, 0.638]
        arena.set_camera(pos_av, quat_av)
"""
_BDDL = "(define (problem fake) (:language {}) (:objects a - b) (:goal (And (Open a))))"


def task_names() -> list[str]:
    """Of both tasks, each kind twice or more, in no tidy order."""
    found = []
    for base in BASES:
        found += [f"{base}_table_4", f"{base}_add_7", f"{base}_light_2", f"{base}_tb_1"]
        found += [f"{base}_view_{angle}_0_{scale}_0_0_initstate_0" for angle, scale in ((15, 100), (0, 120))]
        found += [f"{base}_view_0_0_100_0_0_initstate_{number}" for number in (1, 2)]
        found += [f"{base}_language_{number}_{HOME}" for number in (1, 2)]
        found += [f"{base}_{HOME}_noise_{number}" for number in (8, 33)]
    return [*found, LAYOUT]


def write_package(folder: Path, mount: str = "Mounted") -> Path:
    """The wheel in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / WHEEL.file
    suites = {suite: [] for suite in ("libero_spatial", "libero_object", "libero_10", "libero_90")}
    files = {
        "benchmark/libero_suite_task_map.py": f"libero_task_map = { ({**suites, 'libero_goal': task_names()})!r}\n",
        "envs/problems/fake_manipulation.py": _PROBLEM % mount,
        "envs/robots/mounted_panda.py": _robots("MountedPanda"),
        "envs/robots/on_the_ground_panda.py": _robots("OnTheGroundPanda"),
        f"bddl_files/libero_goal/{LAYOUT}.bddl": _BDDL.format("Turn it on"),
        "bddl_files/libero_goal/stray_language_1 copy.bddl": "no task file",
    }
    for base in BASES:
        for number in (1, 2):
            words = f"{INSTRUCTION} {number}"
            files[f"bddl_files/libero_goal/{base}_language_{number}.bddl"] = _BDDL.format(words)
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(_INSIDE + name, text)
        state = model_task(BASES[0]).init_states[0]
        archive.writestr(f"{_INSIDE}init_files/libero_newobj/libero_goal/{LAYOUT}.pruned_init", _torch_file(state))
    return path


def _robots(name: str) -> str:
    classes = "".join(
        f"class {name}{number}({name}):\n    @property\n    def init_qpos(self):\n        return np.array({pose})\n"
        for number, pose in enumerate(POSES, 1)
    )
    own = f"class {name}(Model):\n    @property\n    def init_qpos(self):\n        return np.array([np.pi / 4])\n"
    return own + classes


def _torch_file(values: np.ndarray) -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(values))
        return buffer.getvalue()
