"""One tabletop task as gymnasium environments, stepped one control step at a time: what `sim.py` compares with."""

from __future__ import annotations

import time
from typing import Any, cast

import gymnasium as gym
import mujoco
import numpy as np

from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import Env, find_robot, quat_to_axis_angle
from embodied_rl.sim.mujoco.gains import ARM, LIBERO_GAINS
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import Array


def _torque(force: Array, jac: Array, mass: Array, bias: Array, posture: Array, q: Array, qd: Array) -> Array:
    """The torques of osc.py, written in numpy, with the inverses that robosuite takes. Joint torques [7]."""
    inverse = np.linalg.inv(mass)
    core = np.linalg.pinv(jac @ inverse @ jac.T)
    core_pos = np.linalg.pinv(jac[:3] @ inverse @ jac[:3].T)
    core_ori = np.linalg.pinv(jac[3:] @ inverse @ jac[3:].T)
    null = np.eye(ARM) - inverse @ jac.T @ core @ jac
    wrench = np.concatenate([core_pos @ force[:3], core_ori @ force[3:]])
    pull = mass @ (LIBERO_GAINS.null_kp * (posture - q) - LIBERO_GAINS.null_kd * qd)
    return jac.T @ wrench + bias + null.T @ pull


def _force(goal_pos: Array, goal_ori: Array, pos: Array, ori: Array, velocity: Array) -> Array:
    """Desired force and torque [6], in numpy."""
    turn = 0.5 * np.cross(ori, goal_ori, axis=0).sum(axis=1)
    return LIBERO_GAINS.kp * np.concatenate([goal_pos - pos, turn]) - LIBERO_GAINS.kd * velocity


class TaskEnv(gym.Env[dict[str, Array], Array]):
    """The task's spaces, reset and rendering; `advance` is up to the two kinds below. Episodes have no end."""

    def __init__(self, suite: str, index: int, image_size: int, drawing: bool) -> None:
        task = load_suite(suite)[index]
        visual = task.build_visual()
        self.model = task.build_physics()
        self.robot = find_robot(self.model)
        self.env = Env(self.model, self.robot, compile_goal(task, self.model), "fast")
        self._task, self._drawing = task, drawing
        self._renderer = make_renderer("auto", [visual])
        self._scene = self._renderer.add_scene(visual)
        self._images = np.zeros((len(PANDA.cameras), image_size, image_size, 3), np.uint8)
        image = gym.spaces.Box(0, 255, self._images.shape, np.uint8)
        proprio = gym.spaces.Box(-np.inf, np.inf, (PANDA.proprio_dim,), np.float32)
        spaces: dict[str, gym.Space[Any]] = {"images": image, "proprio": proprio} if drawing else {"proprio": proprio}
        self.observation_space = cast("gym.Space[dict[str, Array]]", gym.spaces.Dict(spaces))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (PANDA.action_dim,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Array], dict]:
        super().reset(seed=seed, options=options)
        self.env.reset(self._task.init_states[0])
        return self._observation(), {}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict]:
        reward = float(self.advance(action))
        return self._observation(), reward, False, False, {}

    def advance(self, action: Array) -> bool:
        """Run one control step; whether the goal holds."""
        raise NotImplementedError

    def cpu_seconds(self) -> float:
        """CPU time of the process that this environment lives in."""
        return time.process_time()

    def _observation(self) -> dict[str, Array]:
        proprio = np.empty(PANDA.proprio_dim, np.float32)
        data, robot = self.env.data, self.robot
        proprio[:3], proprio[3:6] = data.site_xpos[robot.site], quat_to_axis_angle(data.xquat[robot.hand])
        proprio[6:] = data.qpos[robot.finger_qpos]
        if not self._drawing:
            return {"proprio": proprio}
        self._renderer.render(self._scene, data.xpos, data.xmat, PANDA.cameras, self._images)
        return {"images": self._images, "proprio": proprio}


class KernelEnv(TaskEnv):
    """A control step is one call of our own compiled kernel."""

    def advance(self, action: Array) -> bool:
        return self.env.run(action[None])[1] == kernel.SUCCESS


class BindingsEnv(TaskEnv):
    """A control step is a Python loop over 25 substeps of MuJoCo's bindings, the controller is numpy.

    So robosuite and LIBERO write it, but they also run mj_forward twice more in every substep.
    """

    def advance(self, action: Array) -> bool:
        model, data, robot, control = self.model, self.env.data, self.robot, self.env.control
        action = np.clip(action.astype(np.float64), -1.0, 1.0)
        jac_pos, jac_rot = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        full = np.zeros((model.nv, model.nv))
        for substep in range(kernel.SUBSTEPS):
            mujoco.mj_step1(model, data)
            mujoco.mj_jacSite(model, data, jac_pos, jac_rot, robot.site)
            mujoco.mj_fullM(model, data, full)
            mass = full[np.ix_(robot.dof, robot.dof)]
            jac = np.vstack([jac_pos[:, robot.dof], jac_rot[:, robot.dof]])
            q, qd, bias = data.qpos[robot.qpos], data.qvel[robot.dof], data.qfrc_bias[robot.dof]
            pos, ori = data.site_xpos[robot.site].copy(), data.site_xmat[robot.site].reshape(3, 3).copy()
            if substep == 0:
                control.goal_pos[:] = pos + action[:3] * LIBERO_GAINS.position_scale
                if np.any(action[3:6]):
                    quat, turn = np.zeros(4), np.zeros(9)
                    angle = np.linalg.norm(action[3:6])
                    mujoco.mju_axisAngle2Quat(quat, action[3:6] / angle, angle * LIBERO_GAINS.rotation_scale)
                    mujoco.mju_quat2Mat(turn, quat)
                    control.goal_ori[:] = turn.reshape(3, 3) @ ori
            force = _force(control.goal_pos, control.goal_ori, pos, ori, jac @ qd)
            torque = _torque(force, jac, mass, bias, control.posture, q, qd)
            data.ctrl[robot.motor] = np.clip(torque, robot.low, robot.high)
            step = np.array([-LIBERO_GAINS.grip_speed, LIBERO_GAINS.grip_speed]) * np.sign(action[6])
            control.grip[:] = np.clip(control.grip + step, -1.0, 1.0)
            data.ctrl[robot.finger_motor] = robot.finger_middle + robot.finger_half * control.grip
            mujoco.mj_step2(model, data)
        return bool(self.env.judge().all())
