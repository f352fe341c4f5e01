"""Training states that are drawn at export are those of the official code, which compiles the scene for each."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.sim.libero.install.export import WORKER, Official
from embodied_rl.types import Array

pytestmark = pytest.mark.process

STOVE = "libero_spatial/pick_up_the_black_bowl_on_the_stove_and_place_it_on_the_plate"
"""A bowl stands on a stove, which every reset places anew."""
SCRIPT = """
import importlib, sys
from pathlib import Path
folder, assets, name, out = sys.argv[1:]
sys.path.insert(0, folder)
import numpy as np
import worker
worker.prepare()
compiler = worker.Compiler(Path(assets), False, Path(out).parent)
importlib.import_module("robosuite.utils.binding_utils").MjSim.from_xml_string = compiler
official = importlib.import_module("libero.libero")
env = worker._environment(Path(official.get_libero_path("bddl_files")) / f"{name}.bddl")
drawn = worker.draw_states(env, compiler, 2)
model = env.sim.model._model
compiler.poses = model.body_pos.copy(), model.body_quat.copy()
broken = worker.draw_states(env, compiler, 2)
env.hard_reset, compiled = True, []
for seed in (1, 2):
    env.seed(seed)
    worker._reset(env)
    compiled.append(env.sim.get_state().flatten())
np.savez(out, drawn=drawn, broken=broken, compiled=compiled)
"""
_ARM = slice(1, 8)
"""Joint angles of the arm, to which a state has noise added that a newly compiled scene lacks."""


@pytest.fixture(scope="module")
def states(libero_official: Official, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    folder = tmp_path_factory.mktemp("drawn")
    official, out = replace(libero_official, scratch=folder), folder / "states.npz"
    official.link_assets()
    words = [str(official.environment.python), "-s", "-c", SCRIPT]
    words += [str(WORKER.parent), str(official.assets), STOVE, str(out)]
    subprocess.run(words, env=official.settings(), check=True, stdout=subprocess.DEVNULL)
    with np.load(out) as arrays:
        return dict(arrays)


def test_they_are_those_of_a_scene_that_is_compiled_for_each(states: dict[str, Array]) -> None:
    assert not np.array_equal(states["drawn"][0], states["drawn"][1])
    np.testing.assert_array_equal(np.delete(states["drawn"], _ARM, 1), np.delete(states["compiled"], _ARM, 1))


def test_a_fixture_that_stays_where_the_last_reset_put_it_would_count_twice(states: dict[str, Array]) -> None:
    assert 0.8 < np.abs(states["broken"] - states["drawn"]).max() < 1.0
