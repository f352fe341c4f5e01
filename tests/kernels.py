"""Compiles the kernels that tests use, and fetches what they need: python -m tests.kernels, before the workers start.

Workers that start with an empty cache compile the same ones side by side, a minute of CPU time each. A test may
start no program, and the old library of MuJoCo comes by pip.
"""

from __future__ import annotations

import mujoco
import numpy as np
import torch

from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import EpisodeSpec
from tests import era_library

_BALL = """<mujoco><worldbody>
<light/><geom type="ellipsoid" size=".1 .2 .1"/><camera name="above" pos="0 0 1"/>
</worldbody></mujoco>"""


def simulate_and_act() -> None:
    """The simulator's step, the ray caster, and a policy that decides, is evaluated and learns."""
    (task,) = load_suite("tabletop_spatial")[:1]
    env = MujocoVecEnv([task], 1, renderer=make_renderer("raycast", ()), image_size=nano().image_size)
    try:
        env.reset([0], [EpisodeSpec(0, task.name, 0, 0)])
        env.step([0], torch.zeros(1, 1, 7))
        obs = env.new_observation(1)
        env.observe([0], obs)
    finally:
        env.close()
    policy = OpenVLAPolicy.fresh(nano(), obs.instruction)
    out = policy.act(obs, DecisionRng(np.zeros(1, np.int64), np.zeros(1, np.int64)), "sample")
    policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay).log_prob.sum().backward()


def rasterise() -> None:
    """The rasteriser of meshes."""
    model = mujoco.MjModel.from_xml_string(_BALL)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = make_renderer("raster", [model])
    renderer.render(renderer.add_scene(model), data.xpos, data.xmat, ("above",), np.zeros((1, 32, 32, 3), np.uint8))


if __name__ == "__main__":
    torch.set_num_threads(1)
    simulate_and_act()
    rasterise()
    if reason := era_library.missing():
        print(reason)
