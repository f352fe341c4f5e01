"""The twin's physics for two arms: any MJCF that has the joints of their file, with a joint controller of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.ros2.config import RosConfig
from embodied_rl.real_robot.twin.plant import KD, KP
from embodied_rl.sim.render import make_renderer

TIMESTEP_S = 0.002


class TwoArmPlant:
    """An MJCF's world whose two arms follow joint set points; its fingers keep their own position actuators.

    The MJCF's actuators and dry friction of the arms' joints give way to a stiff controller, as a servo's own loop
    would overcome them. Episodes begin at the MJCF's keyframes, or at the file's home pose where it has none.

    Args:
        scene: The MJCF's path.
        robot: Names and home of the joints.
        config: Names of the fingers and of the cameras.
        image_size: H = W of the pictures; 0: the cameras draw none.

    Raises:
        UserError: The MJCF is not read, steps by other than 2 ms, or lacks a joint, an actuator or a camera.
    """

    def __init__(self, scene: str, robot: TwoArmRobot, config: RosConfig, image_size: int = 64) -> None:
        try:
            model = mujoco.MjModel.from_xml_path(scene)
        except ValueError as error:
            raise UserError(f"the twin's suite is an MJCF's path for two arms; {scene}: {error}") from None
        if model.opt.timestep != TIMESTEP_S:
            raise UserError(f"{scene}: its timestep is {model.opt.timestep:g} s; the twin needs {TIMESTEP_S:g}")
        self.tasks, self.cameras = [Path(scene).stem], tuple(one.name for one in config.cameras) if image_size else ()
        self._home, self._size, self._lock = robot.home, image_size, threading.Lock()
        self._model, self._data = model, mujoco.MjData(model)
        joints, fingers = (_ids(model, "joint", names, scene) for names in (robot.limits.names, config.fingers))
        self._qpos, self._dof = model.jnt_qposadr[joints], model.jnt_dofadr[joints]
        self._finger_qpos, self._finger_dof = model.jnt_qposadr[fingers], model.jnt_dofadr[fingers]
        self._grips = [len(gripper.fingers) for gripper in config.grippers]
        self._motors = np.array([_actuator(model, joint, scene) for joint in fingers])
        self._sides = np.where(model.jnt_range[fingers, 1] <= 0, -1.0, 1.0)
        for joint in joints:
            motor = _actuator(model, joint, scene)
            model.actuator_gainprm[motor], model.actuator_biasprm[motor] = 0.0, 0.0
        model.dof_frictionloss[self._dof] = 0.0
        self._mass = np.zeros((model.nv, model.nv))
        _ids(model, "camera", self.cameras, scene)
        self._renderer = make_renderer("auto", []) if self.cameras else None
        self._scene = None if self._renderer is None else self._renderer.add_scene(model)

    def unknown(self, task: str, state: int, seed: int) -> str:
        """Why there is no such episode; empty where there is."""
        if task not in self.tasks:
            return f"unknown task '{task}'.{suggest(task, self.tasks)}"
        count = max(self._model.nkey, 1)
        if not 0 <= state < count:
            return f"{task} has the initial states 0 to {count - 1}, not {state}"
        return "" if seed >= 0 else f"a seed is not negative, got {seed}"

    def reset(self, task: str, state: int, seed: int) -> str:
        """Begin an episode at a keyframe; what it is called, as no MJCF says what is to be done."""
        if problem := self.unknown(task, state, seed):
            raise UserError(problem)
        with self._lock:
            if self._model.nkey:
                mujoco.mj_resetDataKeyframe(self._model, self._data, state)
            else:
                mujoco.mj_resetData(self._model, self._data)
                self._data.qpos[self._qpos] = self._home
            self._data.ctrl[self._motors] = self._data.qpos[self._finger_qpos]
            mujoco.mj_forward(self._model, self._data)
        return task

    def advance(self, angles: np.ndarray, velocities: np.ndarray, fingers: Sequence[float], steps: int = 1) -> None:
        """Run steps of 2 ms towards a set point.

        Args:
            angles: Where both arms' joints should be [n], rad.
            velocities: How fast they should move there [n], rad/s.
            fingers: Of each gripper, where each finger should be, m from closed.
            steps: How many.
        """
        model, data = self._model, self._data
        with self._lock:
            data.ctrl[self._motors] = self._sides * np.repeat(fingers, self._grips)
            for _ in range(steps):
                mujoco.mj_step1(model, data)
                pull = KP * (angles - data.qpos[self._qpos]) + KD * (velocities - data.qvel[self._dof])
                mujoco.mj_fullM(model, data, self._mass)
                inertia = self._mass[np.ix_(self._dof, self._dof)]
                data.qfrc_applied[self._dof] = inertia @ pull + data.qfrc_bias[self._dof]
                mujoco.mj_step2(model, data)

    def joints(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions and velocities of both arms' joints and then of all fingers, rad and m."""
        with self._lock:
            qpos, qvel = self._data.qpos, self._data.qvel
            return (
                np.concatenate([qpos[self._qpos], qpos[self._finger_qpos]]),
                np.concatenate([qvel[self._dof], qvel[self._finger_dof]]),
            )

    def succeeded(self) -> bool:
        """Whether a goal holds: an MJCF has none."""
        return False

    def images(self) -> np.ndarray:
        """Every camera's picture of the present state: uint8 [cameras, H, W, 3]."""
        out = np.empty((len(self.cameras), self._size, self._size, 3), np.uint8)
        if self._renderer is None or self._scene is None:
            return out
        with self._lock:
            mujoco.mj_kinematics(self._model, self._data)
            xpos, xmat = self._data.xpos.copy(), self._data.xmat.copy()
        self._renderer.render(self._scene, xpos, xmat, self.cameras, out)
        return out


def _ids(model: mujoco.MjModel, kind: str, names: Sequence[str], scene: str) -> np.ndarray:
    try:
        return np.array([getattr(model, kind)(name).id for name in names], np.intp)
    except KeyError as missing:
        raise UserError(f"{scene}: no {kind} of the robot's file: {missing.args[0]}") from None


def _actuator(model: mujoco.MjModel, joint: int, scene: str) -> int:
    """The actuator of a joint."""
    of_joint = (model.actuator_trntype == mujoco.mjtTrn.mjTRN_JOINT) & (model.actuator_trnid[:, 0] == joint)
    if of_joint.sum() != 1:
        raise UserError(f"{scene}: {of_joint.sum()} actuators drive {model.joint(joint).name}: the twin needs one")
    return int(of_joint.argmax())
