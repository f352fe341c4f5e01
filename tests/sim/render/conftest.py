"""The scene that the render tests share."""

from __future__ import annotations

import pytest

# All primitive kinds, partly hidden by one another, in moved bodies, with textures, materials, a sky and a light.
PRIMITIVES = """
<mujoco>
  <statistic extent="2"/>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".5 .7 .9" rgb2=".1 .1 .3" width="64" height="64"/>
    <texture name="check" type="2d" builtin="checker" rgb1=".8 .8 .8" rgb2=".3 .4 .5" width="64" height="64"/>
    <material name="floor" texture="check" texrepeat="4 4" specular=".3" shininess=".4"/>
    <material name="glossy" specular=".4" shininess=".3" rgba=".8 .2 .2 1"/>
  </asset>
  <worldbody>
    <light directional="true" dir=".3 .2 -1" diffuse=".5 .5 .45" specular=".3 .3 .3"/>
    <geom name="floor" type="plane" size="2 2 .1" material="floor"/>
    <geom name="table" type="box" pos=".3 0 .2" size=".3 .4 .2" rgba=".6 .45 .3 1"/>
    <geom name="ball" type="sphere" pos=".2 .1 .5" size=".1" material="glossy"/>
    <body name="tool" pos=".3 -.2 .45"><freejoint/>
      <geom name="stick" type="capsule" size=".04" fromto="0 0 0 .1 .05 .2" rgba=".2 .7 .3 1"/>
      <geom name="can" type="cylinder" size=".06 .05" pos="0 -.1 0" euler="20 30 0" rgba=".2 .3 .9 1"/>
      <site size=".2" group="4"/>
      <camera name="wrist" pos="0 0 .5" xyaxes="1 0 0 0 1 0" fovy="70"/>
    </body>
    <geom name="egg" type="ellipsoid" size=".15 .06 .04" pos=".45 .15 .47" euler="10 20 30" rgba=".9 .8 .1 1"/>
    <geom name="collision" type="sphere" size="1" group="3"/>
    <geom name="invisible" type="sphere" size="1" rgba="1 1 1 0"/>
    <camera name="front" pos="1.3 .2 1.1" xyaxes="-.1 1 0 -.6 -.06 .9" fovy="45"/>
    <camera name="low" pos=".3 -.9 .7" xyaxes="1 0 0 0 .3 1" fovy="60"/>
  </worldbody>
</mujoco>
"""


@pytest.fixture(scope="session")
def primitives() -> str:
    """XML of a scene with every primitive; cameras 'front', 'low' and, on a moving body, 'wrist'."""
    return PRIMITIVES
