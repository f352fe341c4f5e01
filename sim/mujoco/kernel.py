"""One call runs up to K control steps of an env without the GIL: physics, controller, gripper, goal.

A control step is 25 substeps of mj_step1 -> controller -> mj_step2 (LIBERO: 20 Hz control over 500 Hz physics).
"""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit

from embodied_rl.sim.mujoco import osc
from embodied_rl.sim.mujoco.borrow import borrowed
from embodied_rl.sim.mujoco.gains import ARM, OscGains
from embodied_rl.sim.mujoco.goal import Goal, judge
from embodied_rl.sim.mujoco.lapack.products import dot_column
from embodied_rl.sim.mujoco.lapack.rounding import fma
from embodied_rl.sim.mujoco.lapack.torque import Scratch, torques
from embodied_rl.sim.mujoco.mjlib import diverged, mj_jac_site, mj_step1, mj_step2
from embodied_rl.sim.mujoco.sources import source_digest
from embodied_rl.types import Array

SUBSTEPS = 25
_SEEN_BEFORE = 23
"""The camera and the arm sensors see the bodies where substep 24 of 25 starts ..."""
_FINGERS_BEFORE = 24
"""... and the joints where substep 25 starts: LIBERO's sampling phase."""

RUNNING, SUCCESS, FAILED = 0, 1, 2
KEEP_FRESH, KEEP_STALE = 0, 1


class Robot(NamedTuple):
    """Where the robot is in a model, and its constants.

    Args:
        qpos, dof, motor: int64 [7], addresses of the arm's joints and motors.
        finger_qpos, finger_motor: int64 [2].
        mass: int64 [7, 7], addresses in mjData.M.
        low, high: torque limits (N m) [7].
        finger_middle, finger_half: centre and half width of the fingers' ctrl range [2].
        site, hand: ids of the grip site and of the hand's body.
        gains: the controller's.
    """

    qpos: Array
    dof: Array
    motor: Array
    finger_qpos: Array
    finger_motor: Array
    mass: Array
    low: Array
    high: Array
    finger_middle: Array
    finger_half: Array
    site: int
    hand: int
    gains: OscGains


class MjView(NamedTuple):
    """Views of one mjData's arrays (they stay valid as long as it lives)."""

    qpos: Array
    qvel: Array
    ctrl: Array
    bias: Array
    inertia: Array
    xpos: Array
    xmat: Array
    xquat: Array
    site_xpos: Array
    site_xmat: Array


class ControllerState(NamedTuple):
    """State of the controller between substeps, and what it last measured.

    Args:
        goal_pos, goal_ori: [3], [3, 3], the pose that the grip site is pulled to.
        posture: [7], joint positions that the null space is pulled to.
        grip: [2], integrated gripper commands in [-1, 1].
        pos, ori, velocity, q, qd, jac, mass: [3], [3, 3], [6], [7], [7], [6, 7], [7, 7], measured.
        stale: int64 [1]; KEEP_STALE makes the next substep skip its measurement, as LIBERO's first after a reset does.
        jac_pos, jac_rot: [3, nv], scratch.
    """

    goal_pos: Array
    goal_ori: Array
    posture: Array
    grip: Array
    pos: Array
    ori: Array
    velocity: Array
    q: Array
    qd: Array
    jac: Array
    mass: Array
    stale: Array
    jac_pos: Array
    jac_rot: Array


class RenderState(NamedTuple):
    """What an observation shows: a snapshot from within the last control step.

    Args:
        xpos, xmat: [nbody, 3], [nbody, 9], body poses; qpos: [nq], the joint positions that they follow from.
        eef_pos, eef_quat: [3], [4] (wxyz).
        joints: [9], arm and fingers.
        switch_qpos: [nq], joint positions when the control step began. Indicators are drawn by them: LIBERO switches
            after a step, and its frame was taken within.
    """

    xpos: Array
    xmat: Array
    eef_pos: Array
    eef_quat: Array
    joints: Array
    switch_qpos: Array
    qpos: Array


@njit(nogil=True)
def _measure(model: int, data: int, robot: Robot, view: MjView, control: ControllerState) -> None:
    jac_pos, jac_rot = control.jac_pos, control.jac_rot
    mj_jac_site(model, data, jac_pos.ctypes.data, jac_rot.ctypes.data, robot.site)
    for i in range(3):
        control.pos[i] = view.site_xpos[robot.site, i]
        for j in range(3):
            control.ori[i, j] = view.site_xmat[robot.site, 3 * i + j]
    for i in range(ARM):
        at = robot.dof[i]
        control.q[i] = view.qpos[robot.qpos[i]]
        control.qd[i] = view.qvel[at]
        for j in range(3):
            control.jac[j, i] = jac_pos[j, at]
            control.jac[3 + j, i] = jac_rot[j, at]
        for j in range(ARM):
            control.mass[i, j] = view.inertia[robot.mass[i, j]]
    for j in range(3):
        control.velocity[j] = dot_column(jac_pos, 0, 0, view.qvel.shape[0], 3, j, view.qvel)
        control.velocity[3 + j] = dot_column(jac_rot, 0, 0, view.qvel.shape[0], 3, j, view.qvel)


@njit(nogil=True)
def _set_goal(action: Array, gains: OscGains, control: ControllerState) -> None:
    """A new goal relative to the measured pose; a rotation part of exactly zero keeps the old goal orientation."""
    turn, delta = np.empty(3), np.empty((3, 3))
    for i in range(3):
        control.goal_pos[i] = control.pos[i] + min(max(np.float64(action[i]), -1.0), 1.0) * gains.position_scale
        turn[i] = min(max(np.float64(action[3 + i]), -1.0), 1.0) * gains.rotation_scale
    if turn[0] == 0.0 and turn[1] == 0.0 and turn[2] == 0.0:
        return
    osc.delta_rotation(turn, delta)
    for i in range(3):
        for j in range(3):
            x = 0.0
            for k in range(3):
                x = fma(delta[i, k], control.ori[k, j], x)
            control.goal_ori[i, j] = x


@njit(nogil=True)
def _actuate(sign: float, robot: Robot, view: MjView, control: ControllerState, scratch: Scratch, fast: bool) -> None:
    """Write the arm's torques and the fingers' set points."""
    for i in range(ARM):
        scratch.bias[i] = view.bias[robot.dof[i]]
    c = control
    osc.desired_force(robot.gains, c.goal_pos, c.goal_ori, c.pos, c.ori, c.velocity, scratch.force)
    if fast:
        osc.torque_fast(
            robot.gains, scratch.force, c.jac, c.mass, scratch.bias, c.posture, c.q, c.qd, scratch.torque, scratch
        )
    else:
        torques(robot.gains, scratch.force, c.jac, c.mass, scratch.bias, c.posture, c.q, c.qd, scratch.torque, scratch)
    for i in range(ARM):
        view.ctrl[robot.motor[i]] = min(max(scratch.torque[i], robot.low[i]), robot.high[i])
    for i in range(2):
        way = -robot.gains.grip_speed if i == 0 else robot.gains.grip_speed
        c.grip[i] = min(max(c.grip[i] + way * sign, -1.0), 1.0)
        view.ctrl[robot.finger_motor[i]] = robot.finger_middle[i] + robot.finger_half[i] * c.grip[i]


@njit(nogil=True)
def see_bodies(robot: Robot, view: MjView, seen: RenderState) -> None:
    """Copy the body poses that a frame and the eef observation show."""
    seen.xpos[:] = view.xpos
    seen.xmat[:] = view.xmat
    seen.qpos[:] = view.qpos
    seen.eef_pos[:] = view.site_xpos[robot.site]
    seen.eef_quat[:] = view.xquat[robot.hand]


@njit(nogil=True)
def see_joints(robot: Robot, view: MjView, seen: RenderState) -> None:
    """Copy the positions of the arm's joints and fingers."""
    for i in range(ARM):
        seen.joints[i] = view.qpos[robot.qpos[i]]
    for i in range(2):
        seen.joints[ARM + i] = view.qpos[robot.finger_qpos[i]]


@njit(nogil=True)
def control_step(
    model: int,
    data: int,
    action: Array,
    robot: Robot,
    view: MjView,
    control: ControllerState,
    seen: RenderState,
    applied: Array,
    scratch: Scratch,
    fast: bool,
) -> None:
    """25 substeps with one action [7]. applied: float64 [25, nu] receives the controls, or [0, 0] when nobody asks."""
    sign = np.sign(np.float64(action[6]))
    seen.switch_qpos[:] = view.qpos
    for substep in range(SUBSTEPS):
        mj_step1(model, data)
        if control.stale[0] == KEEP_FRESH:
            _measure(model, data, robot, view, control)
        control.stale[0] = KEEP_FRESH
        if substep == 0:
            _set_goal(action, robot.gains, control)
        if substep == _SEEN_BEFORE:
            see_bodies(robot, view, seen)
        if substep == _FINGERS_BEFORE:
            see_joints(robot, view, seen)
        _actuate(sign, robot, view, control, scratch, fast)
        if applied.shape[0] == SUBSTEPS:
            applied[substep] = view.ctrl
        mj_step2(model, data)


@njit(nogil=True)
def _finite(view: MjView) -> bool:
    for x in view.qpos:
        if not np.isfinite(x):
            return False
    for x in view.qvel:  # noqa: SIM110 (numba has no all() over a generator)
        if not np.isfinite(x):
            return False
    return True


def _entry_points(sources: str) -> tuple[Callable[..., tuple[int, int]], Callable[..., bool]]:
    """The functions that Python calls, cached on disk for these sources."""

    @njit(cache=True, nogil=True)
    def run_chunk(
        model: int,
        data: int,
        actions: Array,
        robot: Robot,
        view: MjView,
        control: ControllerState,
        seen: RenderState,
        goal: Goal,
        held: Array,
        applied: Array,
        reward: Array,
        stop: bool,
        fast: bool,
        scratch: Scratch,
    ) -> tuple[int, int]:
        _ = sources
        robot, view, control, seen, goal = borrowed((robot, view, control, seen, goal))
        actions, held, applied, reward, scratch = borrowed((actions, held, applied, reward, scratch))
        for k in range(actions.shape[0]):
            control_step(model, data, actions[k], robot, view, control, seen, applied, scratch, fast)
            if diverged(data) or not _finite(view):
                return k + 1, FAILED
            if judge(goal, data, view.qpos, view.xpos, view.site_xpos, view.site_xmat, held):
                reward[k] = 1.0
                if stop:
                    return k + 1, SUCCESS
        return actions.shape[0], RUNNING

    @njit(cache=True, nogil=True)
    def judge_now(data: int, view: MjView, goal: Goal, held: Array) -> bool:
        _ = sources
        return judge(goal, data, view.qpos, view.xpos, view.site_xpos, view.site_xmat, held)

    return run_chunk, judge_now


run_chunk, judge_now = _entry_points(source_digest())
"""run_chunk runs actions [K, 7] until the physics diverges, or with `stop` until the goal holds; it returns the number
of steps taken and RUNNING, SUCCESS or FAILED. model, data: addresses. reward: float32 [K], receives 1 where the goal
holds after a step. held: bool [G], the predicates after the last step. fast: Cholesky factors instead of robosuite's
linear algebra. scratch: memory that no other thread uses meanwhile. judge_now only evaluates the goal."""


def is_compiled() -> bool:
    """Whether machine code of `run_chunk` is in numba's disk cache; without it the first call takes a while."""
    return any(Path(run_chunk.stats.cache_path).glob("kernel.*run_chunk-*.nbi"))
