"""A scripted expert for LIBERO's official tasks, planned from a task's collision geometry and goal."""

from embodied_rl.sim.libero.expert.geometry import Surface
from embodied_rl.sim.libero.expert.plan import Expert

__all__ = ["Expert", "Surface"]
