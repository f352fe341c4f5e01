"""Worlds of one tabletop task in MuJoCo's own `mujoco.batch`: another one that `sim.py` compares with."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import mujoco
import numpy as np

from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.gains import ARM, LIBERO_GAINS
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.mujoco.osc import delta_rotation
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import Array

_FIELDS = ("qpos", "qvel", "ctrl", "qfrc_bias", "M", "site_xpos", "site_xmat", "xanchor", "xaxis")


def has_batch() -> bool:
    """Whether the installed MuJoCo has `mujoco.batch`."""
    return find_spec("mujoco.batch") is not None


class BatchWorlds:
    """N worlds of a task, a call of the batch each substep; the controller is numpy, over all worlds at once.

    The Jacobian comes from joint axes and anchors that the batch copies out: `Batch.jac` would redo the kinematics.
    Episodes have no end.

    Args:
        suite, index: the task.
        num_envs: N.
        image_size: H = W of the two cameras in pixels; None: nothing is drawn.

    Example:
        >>> worlds = BatchWorlds("tabletop_object", 0, 8, None)
        >>> worlds.step(np.zeros((8, 7), np.float32)).shape
        (8,)
    """

    def __init__(self, suite: str, index: int, num_envs: int, image_size: int | None) -> None:
        from mujoco.batch import Batch

        task = load_suite(suite)[index]
        model = task.build_physics()
        self.robot = find_robot(model)
        self._world = Env(model, self.robot, compile_goal(task, model), "fast")
        # a MjData a world: a step goes on from the stages that the one before computed
        self.batch = Batch(model, num_envs, persistent=True)
        self._seen: dict[str, Array] = {name: self.batch.bind(name) for name in _FIELDS}
        start = task.init_states[0]
        self._seen["qpos"][:], self._seen["qvel"][:] = start[1 : 1 + model.nq], start[1 + model.nq :]
        self.batch.forward(stage=int(mujoco.mjtStage.mjSTAGE_VEL))
        pos, ori = self._site()
        self._goal_pos, self._goal_ori = pos.copy(), ori.copy()
        self._posture = self._seen["qpos"][:, self.robot.qpos].copy()
        self._grip = np.zeros((num_envs, 2))
        self._joints = model.dof_jntid[self.robot.dof]
        self._draws = image_size is not None
        if image_size is not None:
            visual = task.build_visual()
            self._renderer = make_renderer("auto", [visual])
            self._scene = self._renderer.add_scene(visual)
            self.images = np.zeros((num_envs, len(PANDA.cameras), image_size, image_size, 3), np.uint8)

    def step(self, actions: Array) -> Array:
        """One control step of every world: actions float32 [N, 7]; bool [N], whether the goal holds."""
        actions = np.clip(actions.astype(np.float64), -1.0, 1.0)
        self._aim(actions)
        for _ in range(kernel.SUBSTEPS):
            self._control(actions[:, 6:])
            self.batch.step(stage=int(mujoco.mjtStage.mjSTAGE_VEL))
        won = np.zeros(len(actions), np.bool_)
        for i in range(len(actions)):
            self.batch.get_data(i, self._world.data)
            won[i] = self._world.judge().all()
            if self._draws:
                data = self._world.data
                self._renderer.render(self._scene, data.xpos, data.xmat, PANDA.cameras, self.images[i])
        return won

    def _aim(self, actions: Array) -> None:
        """The pose that this step's actions ask for."""
        pos, ori = self._site()
        self._goal_pos[:] = pos + actions[:, :3] * LIBERO_GAINS.position_scale
        turn = np.empty((3, 3))
        for i in np.flatnonzero(actions[:, 3:6].any(axis=1)):
            delta_rotation(actions[i, 3:6] * LIBERO_GAINS.rotation_scale, turn)
            self._goal_ori[i] = turn @ ori[i]

    def _control(self, grip: Array) -> None:
        """Write the controls of a substep: robosuite's OSC_POSE, and the fingers' integrated command."""
        robot, seen, gains = self.robot, self._seen, LIBERO_GAINS
        pos, ori = self._site()
        axis = seen["xaxis"][:, self._joints]
        lever = pos[:, None] - seen["xanchor"][:, self._joints]
        jac = np.concatenate([np.cross(axis, lever), axis], axis=2).swapaxes(1, 2)
        q, qd = seen["qpos"][:, robot.qpos], seen["qvel"][:, robot.dof]
        turn = 0.5 * np.cross(ori, self._goal_ori, axis=1).sum(axis=2)
        velocity = np.einsum("nij,nj->ni", jac, qd)
        force = gains.kp * np.concatenate([self._goal_pos - pos, turn], axis=1) - gains.kd * velocity
        pull = gains.null_kp * (self._posture - q) - gains.null_kd * qd
        torque = _torques(force, jac, seen["M"][:, robot.mass], seen["qfrc_bias"][:, robot.dof], pull)
        ctrl = seen["ctrl"]
        ctrl[:, robot.motor] = np.clip(torque, robot.low, robot.high)
        drive = np.array([-gains.grip_speed, gains.grip_speed]) * np.sign(grip)
        self._grip[:] = np.clip(self._grip + drive, -1.0, 1.0)
        ctrl[:, robot.finger_motor] = robot.finger_middle + robot.finger_half * self._grip

    def _site(self) -> tuple[Array, Array]:
        site = self.robot.site
        return self._seen["site_xpos"][:, site], self._seen["site_xmat"][:, site].reshape(-1, 3, 3)


class BatchContender:
    """`BatchWorlds` as `sim.py` measures it."""

    def __init__(self, suite: str, index: int, num_envs: int, image_size: int | None) -> None:
        self._worlds = BatchWorlds(suite, index, num_envs, image_size)

    def run(self, actions: Array) -> int:
        """actions: [steps, N, 7]. Returns the number of control steps."""
        for action in actions:
            self._worlds.step(action)
        return actions.shape[0] * actions.shape[1]

    def cpu_seconds(self) -> float:
        """CPU time of this process, the batch's threads included."""
        return time.process_time()

    def close(self) -> None:
        """Nothing is held open."""


def _torques(force: Array, jac: Array, mass: Array, bias: Array, pull: Array) -> Array:
    """The torques of osc.py for all worlds: forces [N, 6], Jacobians [N, 6, 7], masses [N, 7, 7]; out [N, 7]."""
    reach = np.linalg.solve(mass, jac.swapaxes(1, 2))
    core = jac @ reach
    wrench = np.concatenate([_solved(core[:, :3, :3], force[:, :3]), _solved(core[:, 3:, 3:], force[:, 3:])], axis=1)
    drift = _solved(core, np.einsum("nij,nj->ni", jac, pull))
    away = np.einsum("nij,nj->ni", mass, pull)
    return np.asarray(bias + away + np.einsum("nij,ni->nj", jac, wrench - drift))[:, :ARM]


def _solved(matrix: Array, vector: Array) -> Array:
    solved: Any = np.linalg.solve(matrix, vector[..., None])
    return np.asarray(solved[..., 0])
