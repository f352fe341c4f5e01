"""OpenGL against mj_forward (poses) and against the ray caster (images), in a subprocess: a driver may crash, and one
process has one GL platform."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.render.gl import Placer
from embodied_rl.sim.render.raycast import RaycastRenderer
from tests.sim.render.gl_script import BACKENDS, run_script

CAMERAS = ("front", "low", "wrist")
SIZE = 160
SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor
import mujoco, numpy as np
from embodied_rl.sim.render.gl import GlRenderer
backend, scene_file, out_file = sys.argv[1:]
model = mujoco.MjModel.from_xml_path(scene_file)
data = mujoco.MjData(model)
data.qpos[:] = np.loadtxt(scene_file + ".qpos")
mujoco.mj_forward(model, data)
cameras = ("front", "low", "wrist")
renderer = GlRenderer(backend)
scene = renderer.add_scene(model)

def from_bodies(_):
    out = np.zeros((3, 160, 160, 3), np.uint8)
    renderer.render(scene, data.xpos, data.xmat, cameras, out)
    small = np.zeros((3, 32, 32, 3), np.uint8)  # another size in between must not spoil the next
    renderer.render(scene, data.xpos, data.xmat, cameras, small)
    renderer.render(scene, data.xpos, data.xmat, cameras, out)
    return out

bodies = from_bodies(0)
with ThreadPoolExecutor(2) as pool:
    threads = list(pool.map(from_bodies, range(4)))
view = renderer._view(scene)
view.stage.data = data
forward = np.zeros_like(bodies)
for camera, image in zip(cameras, forward):
    view.draw(model.camera(camera).id, image, ())
lit, dark = np.zeros_like(bodies), np.zeros_like(bodies)
renderer.render(scene, data.xpos, data.xmat, cameras, lit, (4,))
renderer.render(scene, data.xpos, data.xmat, cameras, dark)
np.savez(out_file, bodies=bodies, forward=forward, threads=threads, lit=lit, dark=dark)
"""


def qpos(model: mujoco.MjModel) -> np.ndarray:
    moved = np.array([0.25, -0.15, 0.5, 0.9, 0.1, -0.2, 0.3])
    moved[3:] /= np.linalg.norm(moved[3:])
    return moved


@pytest.fixture(scope="module", params=BACKENDS)
def drawn(request, primitives: str, tmp_path_factory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp(request.param)
    scene, out = folder / "scene.xml", folder / "out.npz"
    scene.write_text(primitives)
    np.savetxt(f"{scene}.qpos", qpos(mujoco.MjModel.from_xml_string(primitives)))
    run_script(SCRIPT, request.param, scene, out)
    return dict(np.load(out))


@pytest.mark.process
def test_body_poses_draw_what_mj_forward_draws(drawn: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(drawn["bodies"], drawn["forward"])
    assert drawn["bodies"].std() > 10


@pytest.mark.process
def test_threads_draw_what_one_thread_draws(drawn: dict[str, np.ndarray]) -> None:
    for image in drawn["threads"]:
        np.testing.assert_array_equal(image, drawn["bodies"])


@pytest.mark.process
def test_sites_are_drawn_only_when_their_group_is_asked_for(drawn: dict[str, np.ndarray]) -> None:
    assert (drawn["lit"] != drawn["bodies"]).any()
    np.testing.assert_array_equal(drawn["dark"], drawn["bodies"])


@pytest.mark.process
def test_ray_caster_draws_alike(drawn: dict[str, np.ndarray], primitives: str) -> None:
    """Away from edges (GL draws round things as polygons, and lights their corners) few of 255 levels differ."""
    model = mujoco.MjModel.from_xml_string(primitives)
    data = mujoco.MjData(model)
    data.qpos[:] = qpos(model)
    mujoco.mj_forward(model, data)
    renderer = RaycastRenderer()
    scene = renderer.add_scene(model)
    images = np.zeros((len(CAMERAS), SIZE, SIZE, 3), np.uint8)
    renderer.render(scene, data.xpos, data.xmat, CAMERAS, images)
    difference = np.abs(images.astype(float) - drawn["bodies"]).mean(axis=-1)
    assert difference.mean() < 1.5
    for view, camera in enumerate(CAMERAS):
        ids, _ = renderer.geometry(scene, data.xpos, data.xmat, camera, SIZE, SIZE)
        inner = np.ones_like(ids, bool)
        for axis in (0, 1):
            for step in (-1, 1):
                inner &= np.roll(ids, step, axis) == ids
        assert difference[view][inner].mean() < 2.0, camera
        for geom in np.unique(ids[inner]):
            seen = inner & (ids == geom)
            assert seen.sum() < 20 or difference[view][seen].mean() < 3.0, (camera, geom)


GLOSSY_TEXTURES = """<mujoco><visual><headlight ambient=".2 .2 .2" diffuse=".3 .3 .3" specular=".5 .5 .5"/></visual>
<asset><texture name="plain" type="2d" builtin="checker" rgb1=".1 .2 .3" rgb2=".5 .4 .2" width="64" height="64"/>
<texture name="srgb" type="2d" builtin="checker" rgb1=".3 .6 .5" rgb2=".9 .3 .7" width="64" height="64"
 colorspace="sRGB"/>
<material name="glossy" texture="plain" texrepeat="2 2" specular=".9" shininess=".1"/>
<material name="decoded" texture="srgb" texrepeat="2 2" specular=".2" shininess=".3"/></asset>
<worldbody><light directional="true" dir="0 .3 -1" diffuse=".4 .4 .4" specular=".6 .6 .6"/>
<geom name="left" type="plane" size=".5 .5 .1" pos="0 -.55 0" material="glossy"/>
<geom name="right" type="plane" size=".5 .5 .1" pos="0 .55 0" material="decoded"/>
<camera name="eye" pos="0 0 2.4" fovy="50"/></worldbody></mujoco>"""
DRAW_GLOSSY = """
import sys
import mujoco, numpy as np
from embodied_rl.sim.render.gl import GlRenderer
backend, scene_file, out_file = sys.argv[1:]
model = mujoco.MjModel.from_xml_path(scene_file)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = GlRenderer(backend)
image = np.zeros((1, 128, 128, 3), np.uint8)
renderer.render(renderer.add_scene(model), data.xpos, data.xmat, ("eye",), image)
np.save(out_file, image[0])
"""


@pytest.mark.process
@pytest.mark.parametrize("backend", BACKENDS)
def test_highlights_and_srgb_textures_are_opengls(backend: Literal["egl", "osmesa"], tmp_path: Path) -> None:
    """A highlight lies under its texture, and sRGB texels are decoded before they are lit."""
    scene, out = tmp_path / "scene.xml", tmp_path / "out.npy"
    scene.write_text(GLOSSY_TEXTURES)
    run_script(DRAW_GLOSSY, backend, scene, out)
    model = mujoco.MjModel.from_xml_string(GLOSSY_TEXTURES)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = RaycastRenderer()
    image = np.zeros((1, 128, 128, 3), np.uint8)
    handle = renderer.add_scene(model)
    renderer.render(handle, data.xpos, data.xmat, ("eye",), image)
    ids, _ = renderer.geometry(handle, data.xpos, data.xmat, "eye", 128, 128)
    difference = np.abs(image[0].astype(float) - np.load(out)).mean(axis=-1)
    for geom in (0, 1):
        assert difference[ids == geom].mean() < 1.5, geom


def test_placed_poses_are_mj_forwards(primitives: str) -> None:
    model = mujoco.MjModel.from_xml_string(primitives)
    true, placed = mujoco.MjData(model), mujoco.MjData(model)
    true.qpos[:] = qpos(model)
    mujoco.mj_forward(model, true)
    Placer(model, placed).place(true.xpos, true.xmat)
    for name in (
        "geom_xpos",
        "geom_xmat",
        "site_xpos",
        "site_xmat",
        "cam_xpos",
        "cam_xmat",
        "light_xpos",
        "light_xdir",
    ):
        np.testing.assert_allclose(getattr(placed, name), getattr(true, name), atol=1e-12, err_msg=name)
