"""Cameras that follow a body, against MuJoCo's own poses of them and against the same view by a fixed camera."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.render.gl import Placer
from embodied_rl.sim.render.mesh.renderer import RasterRenderer
from embodied_rl.sim.render.raycast import RaycastRenderer
from embodied_rl.sim.render.scene import camera_index, camera_pose

XML = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 .1" rgba=".3 .5 .4 1"/>
    <camera name="above" mode="targetbody" target="spot" pos=".2 .1 1.2"/>
    <body name="spot" pos=".2 .1 0"><geom type="sphere" size=".03" rgba=".1 .1 .1 1"/></body>
    <camera name="aim" mode="targetbody" target="arm" pos=".5 -.6 .7"/>
    <body name="arm" pos=".1 .1 .3" euler="10 20 30">
      <joint type="free"/>
      <geom type="box" size=".05 .08 .1" rgba=".9 .2 .2 1"/>
      <camera name="still" pos=".4 0 .2" xyaxes="0 1 0 -.3 0 .9"/>
      <camera name="beside" mode="track" pos=".3 .2 .4" xyaxes="0 1 0 -.6 0 .5" fovy="70"/>
      <body pos="0 0 .2">
        <joint type="hinge" axis="0 1 0"/>
        <geom type="sphere" size=".05" rgba=".2 .2 .9 1"/>
        <camera name="back" mode="targetbody" target="arm" pos="0 .5 .4"/>
        <camera name="mass" mode="trackcom" pos=".3 .2 .4"/>
      </body>
    </body>
    FIXED
  </worldbody>
</mujoco>
"""
CAMERAS = ("still", "beside", "aim", "back", "above")


def moved(extra: str = "") -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_string(XML.replace("FIXED", extra))
    data = mujoco.MjData(model)
    data.qpos[:] = [0.2, -0.1, 0.4, 0.8, 0.3, -0.4, 0.2, 0.7]
    mujoco.mj_forward(model, data)
    return model, data


@pytest.mark.parametrize("name", CAMERAS)
def test_poses_are_mujocos(name: str) -> None:
    model, data = moved()
    camera = camera_index(model, name)
    position, axes = camera_pose(model, camera, data.xpos, data.xmat)
    np.testing.assert_allclose(position, data.cam_xpos[camera], rtol=0, atol=1e-15)
    np.testing.assert_allclose(axes.ravel(), data.cam_xmat[camera], rtol=0, atol=2e-15)


def test_gl_places_them_there_too() -> None:
    model, data = moved()
    copy = mujoco.MjData(model)
    Placer(model, copy).place(data.xpos.copy(), data.xmat.copy())
    rows = [camera_index(model, name) for name in CAMERAS]
    np.testing.assert_allclose(copy.cam_xpos[rows], data.cam_xpos[rows], rtol=0, atol=1e-15)
    np.testing.assert_allclose(copy.cam_xmat[rows], data.cam_xmat[rows], rtol=0, atol=2e-15)


@pytest.mark.parametrize("renderer", [RasterRenderer, RaycastRenderer])
def test_they_show_what_a_fixed_camera_there_shows(renderer: type[RasterRenderer] | type[RaycastRenderer]) -> None:
    _, data = moved()
    model = mujoco.MjModel.from_xml_string(XML.replace("FIXED", ""))
    fixed = ""
    for name in CAMERAS[1:]:
        at = camera_index(model, name)
        x, y = data.cam_xmat[at].reshape(3, 3).T[:2]
        numbers = [" ".join(map(repr, map(float, row))) for row in (data.cam_xpos[at], [*x, *y])]
        fixed += f'<camera name="as-{name}" pos="{numbers[0]}" xyaxes="{numbers[1]}" fovy="{model.cam_fovy[at]}"/>'
    model, data = moved(fixed)
    drawn = renderer()
    scene = drawn.add_scene(model)
    images = np.zeros((2 * len(CAMERAS[1:]), 48, 48, 3), np.uint8)
    names = (*CAMERAS[1:], *(f"as-{name}" for name in CAMERAS[1:]))
    drawn.render(scene, data.xpos, data.xmat, names, images)
    for one, two in zip(images[: len(images) // 2], images[len(images) // 2 :], strict=True):
        assert one.std() > 5
        assert np.abs(one.astype(int) - two).max() <= 1


def test_one_that_follows_a_centre_of_mass_is_refused_by_name() -> None:
    model, _ = moved()
    with pytest.raises(UserError, match="camera 'mass' follows a centre of mass"):
        camera_index(model, "mass")
