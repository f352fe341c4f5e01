"""The parts of a model, for programs that draw them themselves."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.render.mesh.parts import drawn_parts
from embodied_rl.sim.tabletop import load_suite

SCENE = """
<mujoco>
  <asset>
    <texture name="checks" type="2d" builtin="checker" width="8" height="4" rgb1="1 0 0" rgb2="0 0 1"/>
    <texture name="around" type="cube" builtin="flat" width="4" height="4" rgb1="0 1 0" rgb2="0 1 0"/>
    <material name="checks" texture="checks"/>
    <material name="around" texture="around"/>
    <mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1"/>
  </asset>
  <worldbody>
    <geom name="floor" type="plane" size="2 1 .1" material="checks"/>
    <body name="arm" pos="0 0 1">
      <geom name="box" type="box" size=".1 .2 .3" pos="1 0 0" euler="0 0 90" rgba="1 .5 0 .25" mass="1"/>
      <geom name="ball" type="sphere" size=".1" material="around" mass="1"/>
      <geom name="wedge" type="mesh" mesh="wedge" mass="1"/>
      <geom name="hidden" type="sphere" size=".1" group="3" mass="1"/>
      <geom name="clear" type="sphere" size=".1" rgba="1 1 1 0" mass="1"/>
      <site name="lamp" type="box" size=".1 .1 .1" group="4" rgba="1 1 0 1"/>
    </body>
  </worldbody>
</mujoco>
"""


def test_every_kind_of_part() -> None:
    floor, box, ball, wedge, lamp = drawn_parts(mujoco.MjModel.from_xml_string(SCENE))
    assert [part.group for part in (floor, box, ball, wedge, lamp)] == [-1, -1, -1, -1, 4]
    assert [part.body for part in (floor, box, ball, wedge, lamp)] == [0, 1, 1, 1, 1]
    assert box.color == pytest.approx((1, 0.5, 0, 0.25))
    assert len(box.points) == 24, "corners that have another normal are other ones"
    assert len(box.faces) == 12
    np.testing.assert_allclose(np.abs(box.points).max(axis=0), (0.1, 0.2, 0.3), atol=1e-6)
    np.testing.assert_allclose(box.position, (1, 0, 0))
    np.testing.assert_allclose(box.rotation @ (1, 0, 0), (0, 1, 0), atol=1e-9)
    assert ball.texture is None
    assert ball.color == pytest.approx((0, 1, 0, 1)), "what lies around it is its mean colour"
    assert len(wedge.faces) == 4


def test_normals_point_where_the_triangles_do() -> None:
    for part in drawn_parts(mujoco.MjModel.from_xml_string(SCENE)):
        a, b, c = (part.points[part.faces[:, k]] for k in range(3))
        out = np.cross(b - a, c - a)
        assert ((out[:, None] * part.normals[part.faces]).sum(-1) > -1e-9).all()


def test_a_texture_lies_as_mujoco_lays_it() -> None:
    """The plane's texture goes once over it: its first row is where y is greatest."""
    floor = drawn_parts(mujoco.MjModel.from_xml_string(SCENE))[0]
    assert floor.texture is not None
    assert floor.coords is not None
    assert floor.texture.shape == (4, 8, 3)
    assert floor.texture[0, 0].tolist() == [255, 0, 0]
    assert floor.texture[0, -1].tolist() == [0, 0, 255]
    first = {
        tuple(np.round(point[:2]).tolist()): (uv % 1).round(3).tolist()
        for point, uv in zip(floor.points, floor.coords, strict=True)
    }
    assert len(first) == 4
    across = floor.coords[:, 0] - 0.5 * 0.5 * floor.points[:, 0]
    along = floor.coords[:, 1] + 0.5 * floor.points[:, 1]
    np.testing.assert_allclose(across, across[0], atol=1e-5)
    np.testing.assert_allclose(along, along[0], atol=1e-5)


def test_what_cameras_show_of_a_task_is_there_once() -> None:
    model = load_suite("tabletop_goal")[0].build_visual()
    shown = [geom for geom in range(model.ngeom) if model.geom_group[geom] < 3]
    parts = [part for part in drawn_parts(model) if part.group < 0]
    assert sorted(part.body for part in parts) == sorted(model.geom_bodyid[shown].tolist())
