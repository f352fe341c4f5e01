"""Fast frames of real LIBERO tasks against the official ones (MuJoCo's, antialiased and with reflections)."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.libero.tasks import load_task
from embodied_rl.sim.mujoco.factory import choose_render_quality, choose_renderer
from embodied_rl.sim.mujoco.indicators import FIRST_GROUP
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.render import Probe
from embodied_rl.sim.render import choose as _choose
from embodied_rl.sim.render.mesh.renderer import RasterRenderer
from tests.sim.render.gl_script import run_script

# name, extra site groups, least PSNR in dB of agentview and of the wrist, least gain over plain frames
TASKS = (
    ("libero_goal/turn_on_the_stove", (FIRST_GROUP,), 27.0, 26.0, 2.0),
    ("libero_object/pick_up_the_milk_and_place_it_in_the_basket", (), 24.0, 27.0, -2.0),
)
SCRIPT = """
import sys
from pathlib import Path
import mujoco, numpy as np
from embodied_rl.sim.libero.tasks import load_task
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.render.gl import GlRenderer
backend, root, name, groups, poses, out = sys.argv[1:]
where = np.load(poses)
frames = np.zeros((2, 2, 64, 64, 3), np.uint8)
for k, pictures in enumerate((True, False)):
    renderer = GlRenderer(backend, images=pictures)
    scene = renderer.add_scene(load_task(Path(root), name).build_visual())
    sites = tuple(int(word) for word in groups.split())
    renderer.render(scene, where["xpos"], where["xmat"], PANDA.cameras, frames[k], sites)
np.save(out, frames)
"""


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(np.float64) - other) ** 2)))


@pytest.mark.process
@pytest.mark.parametrize(("name", "groups", "agentview", "wrist", "gain"), TASKS, ids=[task[0] for task in TASKS])
def test_fast_frames_are_nearly_the_official_ones(
    libero_root: Path, tmp_path: Path, name: str, groups: tuple[int, ...], agentview: float, wrist: float, gain: float
) -> None:
    task = load_task(libero_root, name)
    model = task.build_visual()
    data = mujoco.MjData(model)
    data.qpos[:] = task.init_states[task.train_states[0]][1 : 1 + model.nq]
    mujoco.mj_kinematics(model, data)
    np.savez(tmp_path / "poses.npz", xpos=data.xpos, xmat=data.xmat)
    words = " ".join(str(group) for group in groups)
    run_script(SCRIPT, "osmesa", libero_root, name, words, tmp_path / "poses.npz", tmp_path / "out.npy")
    official, plain = np.load(tmp_path / "out.npy")
    renderer, frames = RasterRenderer(), np.zeros_like(official)
    scene = renderer.add_scene(model)
    renderer.render(scene, data.xpos, data.xmat, PANDA.cameras, frames, groups)
    found = [psnr(frame, true) for frame, true in zip(frames, official, strict=True)]
    assert found[0] > agentview, found
    assert found[1] > wrist, found
    assert np.mean(found) > np.mean([psnr(a, b) for a, b in zip(plain, official, strict=True)]) + gain, found
    moved = data.xpos + 0.02 * (np.arange(model.nbody) > 0)[:, None]  # what 2 cm too far would look like
    renderer.render(scene, moved, data.xmat, PANDA.cameras[:1], frames[:1], groups)
    assert psnr(frames[0], official[0]) < found[0] - 3


def test_a_task_is_drawn_fast_only_when_it_is_asked_for(libero_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"egl": Probe("software", "llvmpipe"), "osmesa": Probe("software", "llvmpipe")}
    monkeypatch.setitem(_choose.__globals__, "probe", states.__getitem__)
    tasks = [load_task(libero_root, TASKS[0][0])]
    for wanted, name in (("auto", "osmesa"), ("exact", "osmesa"), ("fast", "raster")):
        assert choose_renderer("auto", tasks, choose_render_quality(wanted, tasks)).name == name
