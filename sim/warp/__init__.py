"""Worlds that step together on one device: MuJoCo Warp behind the `VecEnv` contract, and its batch renderer.

Import `embodied_rl.sim.warp.install` first where the packages may be missing; all other modules import Warp.
"""
