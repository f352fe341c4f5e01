"""Leaving out what a camera cannot see changes no pixel: in a subprocess, since a process has one GL platform."""

from __future__ import annotations

import json
from typing import Any

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.render.cull import Culler
from tests.sim.render.gl_script import run_script

SIZE = (72, 48)
# Scenes full of primitives and a mesh around random cameras. With mirrors: the first box reflects, the second one is
# dull though its material is the same, and a third, transparent one before both is no mirror.
SCRIPT = """
import json, sys
import mujoco, numpy as np
from embodied_rl.sim.render.cull import Culler
from embodied_rl.sim.render.gl import GlRenderer

def scene(seed, mirrors, shadow):
    rng = np.random.default_rng(seed)
    def place(low, high):
        p, q = rng.uniform(low, high, 3), rng.normal(size=4)
        return f'pos="{p[0]} {p[1]} {p[2]}" quat="{q[0]} {q[1]} {q[2]} {q[3]}"'
    kinds = ("box", "sphere", "capsule", "cylinder", "ellipsoid", "mesh")
    geoms = []
    for i in range(60):
        kind = kinds[i % 6]
        size = 'mesh="tetra"' if kind == "mesh" else 'size="%f %f %f"' % tuple(rng.uniform(0.02, 0.3, 3))
        alpha = 0.5 if i % 7 == 0 else 1
        rgb = rng.uniform(0.2, 1, 3)
        geoms.append(f'<geom type="{kind}" {size} {place(-2, 2)} rgba="{rgb[0]} {rgb[1]} {rgb[2]} {alpha}"/>')
    if mirrors:
        geoms.insert(0, f'<geom type="box" size=".4 .4 .05" {place(-1, 1)} material="mirror" rgba=".5 .5 .5 .4"/>')
        geoms.insert(20, '<geom type="box" size=".5 .7 .1" pos="0 0 -.6" euler=".1 .2 0" material="mirror"/>')
        geoms.insert(40, f'<geom type="box" size=".4 .4 .1" {place(-1, 1)} material="mirror"/>')
    cameras = [f'<camera name="c{i}" fovy="{rng.uniform(20, 80)}" {place(-1.2, 1.2)}/>' for i in range(8)]
    cameras.append('<camera name="down" fovy="70" pos="0 0 1" quat="1 0 0 0"/>')
    return f'''<mujoco><statistic extent="2" center="0 0 0"/><visual><quality shadowsize="256" offsamples="4"/></visual>
      <asset><mesh name="tetra" vertex="0 0 0  .3 0 0  0 .4 0  0 0 .2"/><material name="mirror" reflectance=".6"/>
      </asset>
      <worldbody><light pos="1 1 3" castshadow="{str(shadow).lower()}"/>
      <light pos="-1 0 3" dir="0 0 -1" castshadow="false"/>
      <geom type="plane" size="3 3 .1" pos="0 0 -1"/><site type="box" size=".2 .1 .1" pos="0 0 .5" group="4"/>
      {''.join(geoms)}{''.join(cameras)}</worldbody></mujoco>'''

cull = Culler.cull
def none(self, aspect): pass
def tight(self, aspect):
    self._half = self._half * 0.5
    cull(self, aspect)
    self._half = self._half * 2
def blind(self, aspect):
    mirrored, self._mirrored = self._mirrored, lambda boxes, *_: np.zeros(len(boxes.centre), bool)
    cull(self, aspect)
    self._mirrored = mirrored

def drawn(renderer, xml, way):
    Culler.cull = way
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    number = renderer.add_scene(model)
    out, counts = [], []
    for i in range(model.ncam):
        image = np.zeros((1, 48, 72, 3), np.uint8)
        renderer.render(number, data.xpos, data.xmat, (model.camera(i).name,), image, (4,))
        out.append(image)
        counts.append(renderer._view(number)._scene.ngeom)
    renderer.remove_scene(number)
    return np.array(out), counts

found = []
for pictures in (True, False):
    renderer = GlRenderer(sys.argv[1], images=pictures)
    for mirrors in (False, True):
        for seed in range(6):
            xml = scene(seed, mirrors, False)
            (all_, most), (culled, fewer) = (drawn(renderer, xml, way) for way in (none, cull))
            row = {"pictures": pictures, "mirrors": mirrors, "different": int((all_ != culled).sum()),
                   "most": sum(most), "fewer": sum(fewer)}
            for name, way in (("tight", tight), ("blind", blind)):
                row[name] = int((drawn(renderer, xml, way)[0] != all_).sum())
            found.append(row)
renderer = GlRenderer(sys.argv[1], images=True)
xml = scene(0, False, True)
(all_, most), (culled, fewer) = (drawn(renderer, xml, way) for way in (none, cull))
found.append({"shadow": True, "different": int((all_ != culled).sum()), "most": sum(most), "fewer": sum(fewer)})
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return json.loads(run_script(SCRIPT, "osmesa").splitlines()[-1])


@pytest.mark.process
def test_no_pixel_changes_and_much_is_left_out(rows) -> None:
    assert [row["different"] for row in rows] == [0] * len(rows)
    for row in rows:
        if "shadow" in row:
            assert row["fewer"] == row["most"], "a shadow may fall into the picture from anywhere"
        else:
            assert row["fewer"] < 0.6 * row["most"]


@pytest.mark.process
def test_wrong_ways_would_be_seen(rows) -> None:
    assert all(row["tight"] > 0 for row in rows if "tight" in row)
    mirrors = [row for row in rows if row.get("mirrors") and row["pictures"]]
    assert sum(row["blind"] > 0 for row in mirrors) >= 3


def test_the_geoms_left_are_whole() -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><camera name="c" pos="0 0 2"/><geom size=".1" pos="9 0 0"/>'
        '<geom size=".2" rgba="1 0 0 1"/><geom type="plane" size="1 1 1"/><geom size=".3" pos="0 9 0"/>'
        '<geom size=".4" pos=".1 0 0"/></worldbody></mujoco>'
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    scene, camera = mujoco.MjvScene(model, maxgeom=10), mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera, mujoco.mjtCatBit.mjCAT_ALL, scene)
    fields = [name for name in dir(scene.geoms[0]) if not name.startswith("_")]
    before = [{name: np.array(getattr(geom, name)) for name in fields} for geom in scene.geoms[: scene.ngeom]]
    Culler(model, scene).cull(1.0)
    after = [{name: np.array(getattr(geom, name)) for name in fields} for geom in scene.geoms[: scene.ngeom]]
    assert [int(geom["objid"]) for geom in after] == [1, 2, 4]
    for old, new in zip((before[1], before[2], before[4]), after, strict=True):
        for name in fields:
            np.testing.assert_array_equal(old[name], new[name], err_msg=name)
