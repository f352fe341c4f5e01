"""Pictures and states equal the official code's, on real tasks; a difference is found where there is one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.benchmarks.lab import compare as compare_module
from embodied_rl.benchmarks.lab.compare import pick, record_official
from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install.export import Official
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake
from tests.sim.libero.stage import FakeEnvironment
from tests.sim.render.gl_script import run_script

SIZE, STEPS = 64, 1
SCRIPT = """
import json, sys
from dataclasses import astuple, replace
from pathlib import Path
import numpy as np
from embodied_rl.benchmarks.lab.compare import compare
from embodied_rl.sim.libero.tasks import load_task
_, root, recordings, *names = sys.argv[1:]
found = {}
for name in names:
    with np.load(Path(recordings) / f"{name}.npz") as arrays:
        recorded = dict(arrays)
    task = load_task(Path(root), name)
    found[name] = astuple(compare(task, recorded))

def darker():
    model = task.build_visual()
    model.vis.headlight.diffuse[:] *= 0.9
    return model

recorded["actions"][0] *= 0.99
found["broken"] = astuple(compare(replace(task, build_visual=darker), recorded))
print(json.dumps(found))
"""


@pytest.mark.process
def test_no_pixel_and_no_state_differs(libero_root: Path, libero_official: Official, tmp_path: Path) -> None:
    """The goal task has a burner, which is drawn only while its knob is turned; the object task a mesh on the floor."""
    names = ["libero_goal/turn_on_the_stove", "libero_object/pick_up_the_milk_and_place_it_in_the_basket"]
    official = replace(libero_official, scratch=tmp_path)
    assert list(record_official(official, names, SIZE, STEPS)) == names
    found = json.loads(run_script(SCRIPT, "osmesa", libero_root, tmp_path, *names))
    assert [found[name] for name in names] == [[1 + STEPS, 0, 0, 0.0]] * 2
    _, drawn, _, qpos = found["broken"]
    assert drawn > 0
    assert qpos > 0


@pytest.mark.process
def test_a_failure_of_the_official_code_is_one_line(tmp_path: Path) -> None:
    environment = FakeEnvironment(tmp_path / "environment")  # without robosuite
    environment.build()
    official = Official(environment, tmp_path, True, tmp_path)
    with pytest.raises(UserError, match=r"^the official environment failed: ModuleNotFoundError.*; see .*frames.log$"):
        list(record_official(official, [NAME], SIZE, STEPS))


def test_tasks_are_spread_over_the_suites(tmp_path: Path) -> None:
    install_fake(tmp_path, (NAME, OTHER))
    assert pick(tmp_path, ["libero_goal"], 9) == [NAME, OTHER]
    assert pick(tmp_path, ["libero_goal"], 1) == [NAME]
    with pytest.raises(UserError, match="suite 'libero_10' is not installed"):
        pick(tmp_path, ["libero_goal", "libero_10"], 1)
    assert compare_module.Difference(1, 0, 3, 0.5).worst == 3
