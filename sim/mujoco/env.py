"""One env of LIBERO's Panda: a task's physics model, its mjData and the controller's state, for the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.base_env import BaseEnv
from embodied_rl.sim.mujoco.gains import LIBERO_GAINS
from embodied_rl.sim.mujoco.goal import Goal, compile_predicates
from embodied_rl.sim.mujoco.lapack.torque import make_scratch
from embodied_rl.sim.mujoco.mjlib import arm_mass_addresses
from embodied_rl.types import Array

ControllerMode = Literal["exact", "fast"]
EEF_BODY = "robot0_right_hand"
GRIP_SITE = "gripper0_grip_site"
TIMESTEP = 0.002
_NO_RECORD = np.zeros((0, 0))
_MEASURED = ("pos", "ori", "velocity", "q", "qd", "jac", "mass")


def find_robot(model: mujoco.MjModel) -> kernel.Robot:
    """Look up the Panda by robosuite's names; UserError when the model has no such robot or another timestep."""
    if model.opt.timestep != TIMESTEP:
        raise UserError(f"the model's timestep is {model.opt.timestep} s; the controller needs {TIMESTEP} s")
    try:
        joints = np.array([model.joint(f"robot0_joint{i}").id for i in range(1, 8)])
        fingers = np.array([model.joint(f"gripper0_finger_joint{i}").id for i in (1, 2)])
        motors = np.array([model.actuator(f"robot0_torq_j{i}").id for i in range(1, 8)], dtype=np.int64)
        drives = np.array([model.actuator(f"gripper0_gripper_finger_joint{i}").id for i in (1, 2)], dtype=np.int64)
        site, hand = int(model.site(GRIP_SITE).id), int(model.body(EEF_BODY).id)
    except KeyError as missing:
        raise UserError(f"the model has no LIBERO-style Panda: {missing.args[0]}") from None
    dofs = model.jnt_dofadr[joints].astype(np.int64)
    limits, travel = model.actuator_ctrlrange[motors], model.actuator_ctrlrange[drives]
    return kernel.Robot(
        qpos=model.jnt_qposadr[joints].astype(np.int64),
        dof=dofs,
        motor=motors,
        finger_qpos=model.jnt_qposadr[fingers].astype(np.int64),
        finger_motor=drives,
        mass=arm_mass_addresses(model, dofs),
        low=limits[:, 0].copy(),
        high=limits[:, 1].copy(),
        finger_middle=0.5 * (travel[:, 1] + travel[:, 0]),
        finger_half=0.5 * (travel[:, 1] - travel[:, 0]),
        site=site,
        hand=hand,
        gains=LIBERO_GAINS,
    )


class Env(BaseEnv):
    """The physics of one episode at a time. Not for two threads at once.

    Args:
        model: the physics model.
        robot: where the robot is in `model`, from `find_robot`.
        goal: from `compile_goal`; None: no goal, so no success.
        controller: 'exact' or 'fast', see `MujocoVecEnv`.

    Attributes:
        data: MuJoCo's state.
        control: the controller's state (`kernel.ControllerState`).
        seen: what an observation shows (`kernel.RenderState`).
        held: bool [G], which predicates of the goal held after the last step; none before an episode's first, unless
            `judge_start` was called.

    Example:
        env = Env(model, find_robot(model), compile_goal(task, model), "fast")
        env.reset(task.init_states[0])
        steps, status = env.run(actions)  # float32 [K, 7]
    """

    def __init__(
        self, model: mujoco.MjModel, robot: kernel.Robot, goal: Goal | None, controller: ControllerMode
    ) -> None:
        super().__init__(model)
        self._started: Mapping[str, Array] | None = None
        self._robot = robot
        self._goal = goal if goal is not None else compile_predicates((), model)
        self._fast = controller == "fast"
        self._scratch = make_scratch()
        self.held = np.zeros(len(self._goal.kind), np.bool_)
        self._view = _view_of(self.data)
        self.control = kernel.ControllerState(
            goal_pos=np.zeros(3),
            goal_ori=np.eye(3),
            posture=np.zeros(7),
            grip=np.zeros(2),
            pos=np.zeros(3),
            ori=np.eye(3),
            velocity=np.zeros(6),
            q=np.zeros(7),
            qd=np.zeros(7),
            jac=np.zeros((6, 7)),
            mass=np.eye(7),
            stale=np.zeros(1, np.int64),
            jac_pos=np.zeros((3, model.nv)),
            jac_rot=np.zeros((3, model.nv)),
        )
        self.seen = kernel.RenderState(
            np.zeros((model.nbody, 3)),
            np.zeros((model.nbody, 9)),
            np.zeros(3),
            np.zeros(4),
            np.zeros(9),
            np.zeros(model.nq),
            np.zeros(model.nq),
        )

    def reset(self, state: Array, start: Mapping[str, Array] | None = None) -> None:
        """Begin an episode.

        Args:
            state: float64 [1 + nq + nv]: time, qpos, qvel.
            start: what LIBERO's env.reset leaves behind and its set_init_state keeps, by the names and shapes of the
                golden data: the solver's warm start, controls, the controller's goal, and its measurements for the
                stale first substep. None: the controller's goal and posture are the present ones.
        """
        self.set_state(state)
        # with `start`, poses are enough: the first substep computes the rest of mj_forward itself
        (mujoco.mj_forward if start is None else mujoco.mj_kinematics)(self.model, self.data)
        robot, view, control = self._robot, self._view, self.control
        control.goal_pos[:] = view.site_xpos[robot.site]
        control.goal_ori[:] = view.site_xmat[robot.site].reshape(3, 3)
        control.posture[:] = view.qpos[robot.qpos]
        control.grip[:] = 0.0
        control.stale[0] = kernel.KEEP_FRESH
        for array in (self.held, *(getattr(control, name) for name in _MEASURED)):
            array.fill(0)  # of the episode before; the first substep measures before it reads
        self.look()
        self._started = start
        if start is not None:
            self._continue(start)

    def _continue(self, start: Mapping[str, Array]) -> None:
        control = self.control
        self.data.qacc_warmstart[:] = start["qacc_warmstart0"]
        self.data.ctrl[:] = start["ctrl0"]
        control.posture[:] = start["ctl_initial_joint"]
        control.goal_ori[:], control.goal_pos[:] = start["ctl_goal_ori0"], start["ctl_goal_pos0"]
        control.grip[:] = start["gripper_current_action0"]
        if "stale_new_update" not in start or bool(start["stale_new_update"]):
            return
        control.stale[0] = kernel.KEEP_STALE
        control.pos[:], control.ori[:] = start["stale_ee_pos"], start["stale_ee_ori_mat"]
        control.velocity[:3], control.velocity[3:] = start["stale_ee_pos_vel"], start["stale_ee_ori_vel"]
        control.q[:], control.qd[:] = start["stale_joint_pos"], start["stale_joint_vel"]
        control.jac[:], control.mass[:] = start["stale_J_full"], start["stale_mass_matrix"]

    def look(self) -> None:
        """Copy what an observation shows from mjData as it is now."""
        robot, view, seen = self._robot, self._view, self.seen
        seen.xpos[:], seen.xmat[:] = view.xpos, view.xmat
        seen.eef_pos[:], seen.eef_quat[:] = view.site_xpos[robot.site], view.xquat[robot.hand]
        seen.switch_qpos[:], seen.qpos[:] = view.qpos, view.qpos
        seen.joints[:7], seen.joints[7:] = view.qpos[robot.qpos], view.qpos[robot.finger_qpos]

    def run(
        self, actions: Array, reward: Array | None = None, *, stop: bool = True, applied: Array = _NO_RECORD
    ) -> tuple[int, int]:
        """Run up to K control steps; divergence of the physics ends them early.

        Args:
            actions: float [K, 7], clipped to [-1, 1].
            reward: float32 [K], receives 1 where the goal holds after a step.
            stop: whether success ends the run as well.
            applied: float64 [25, nu], receives the controls of the last step's substeps.

        Returns:
            (steps taken, kernel.RUNNING, SUCCESS or FAILED).
        """
        if reward is None:
            reward = np.zeros(len(actions), np.float32)
        return kernel.run_chunk(
            self.model._address,
            self.data._address,
            actions,
            self._robot,
            self._view,
            self.control,
            self.seen,
            self._goal,
            self.held,
            applied,
            reward,
            stop,
            self._fast,
            self._scratch,
        )

    def judge(self) -> Array:
        """Evaluate the goal on mjData as it is now (after mj_forward): bool [G]."""
        kernel.judge_now(self.data._address, self._view, self._goal, self.held)
        return self.held.copy()

    def judge_start(self) -> None:
        """Evaluate the goal on the state after `reset`, into `held`. The simulation is not touched: where `reset` has
        computed poses only, contacts are those of a copy."""
        if self._started is None:
            self.judge()
            return
        copy = mujoco.MjData(self.model)
        copy.qpos[:], copy.qvel[:] = self.data.qpos, self.data.qvel
        mujoco.mj_forward(self.model, copy)
        kernel.judge_now(copy._address, _view_of(copy), self._goal, self.held)

    def proprio(self, out: Array) -> None:
        """out float32 [8]: eef position (m), eef axis-angle (rad), finger positions (m), as in LIBERO."""
        seen = self.seen
        out[:3] = seen.eef_pos
        out[3:6] = quat_to_axis_angle(seen.eef_quat)
        out[6:] = seen.joints[7:]


def _view_of(d: mujoco.MjData) -> kernel.MjView:
    return kernel.MjView(d.qpos, d.qvel, d.ctrl, d.qfrc_bias, d.M, d.xpos, d.xmat, d.xquat, d.site_xpos, d.site_xmat)


def quat_to_axis_angle(quat: Array) -> Array:
    """Axis times angle, [3] (rad), of a unit quaternion wxyz; the angle is 2 acos(w), in [0, 2 pi]."""
    w = min(max(float(quat[0]), -1.0), 1.0)
    sine = np.sqrt(1.0 - w * w)
    if np.isclose(sine, 0.0):
        return np.zeros(3)
    return np.asarray(quat[1:]) * (2.0 * np.arccos(w) / sine)
