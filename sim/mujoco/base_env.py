"""What every env has, whatever robot acts in it: a physics model and an mjData that begins anew."""

from __future__ import annotations

import mujoco

from embodied_rl.errors import UserError
from embodied_rl.sim.eras import CURRENT
from embodied_rl.sim.mujoco.era import era_of, install
from embodied_rl.sim.mujoco.mjlib import check_layout
from embodied_rl.types import Array


class BaseEnv:
    """The physics of one episode at a time. Not for two threads at once.

    Args:
        model: the physics model.

    Attributes:
        data: MuJoCo's state.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        check_layout()
        if era_of(model) != CURRENT:
            install()  # the mark may come from another process
        self.model = model
        self.data = mujoco.MjData(model)

    def set_state(self, state: Array) -> None:
        """Clear mjData and write [time, qpos, qvel]; nothing is computed yet."""
        model, data = self.model, self.data
        if state.shape != (1 + model.nq + model.nv,):
            raise UserError(
                f"an initial state of this model has {1 + model.nq + model.nv} numbers (time, qpos, qvel), "
                f"got {state.shape}"
            )
        mujoco.mj_resetData(model, data)
        data.time = state[0]
        data.qpos[:] = state[1 : 1 + model.nq]
        data.qvel[:] = state[1 + model.nq :]
