"""One env of a robot that is driven by joint positions: ALOHA's two arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.base_env import BaseEnv
from embodied_rl.sim.mujoco.joint_kernel import Drives, StageTable, judge_stages, run_joint_chunk
from embodied_rl.sim.mujoco.robot import RobotSpec
from embodied_rl.sim.mujoco.task import Stage
from embodied_rl.types import Array


class _Seen(NamedTuple):
    """What an observation shows: mjData's own arrays, which are of the present state between control steps."""

    xpos: Array
    xmat: Array
    qpos: Array
    switch_qpos: Array


class JointRobot(NamedTuple):
    """Where a robot's joints are in a model.

    Args:
        drives: see `Drives`.
        substeps: mj_steps a control step.
        qpos, dof: int64 [A], of the joint that each number of an action stands for.
        scale, offset: float64 [A]: that joint's position is `scale * number + offset`.
    """

    drives: Drives
    substeps: int
    qpos: Array
    dof: Array
    scale: Array
    offset: Array


def find_joint_robot(spec: RobotSpec, model: mujoco.MjModel) -> JointRobot:
    """Look up the joints of `spec.drives` and their actuators; UserError where the model lacks one."""
    actuators = {int(joint): index for index, (joint, _) in enumerate(model.actuator_trnid)}
    rows: list[tuple[int, int, float, float]] = []
    firsts: list[int] = []
    for number, drive in enumerate(spec.drives):
        for joint_name, sign in zip(drive.joints, (1.0, -1.0), strict=False):
            joint = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, joint_name)
            if joint not in actuators:
                raise UserError(f"the model has no joint '{joint_name}' with an actuator, which robot {spec.name} has")
            rows.append((actuators[joint], number, sign * drive.scale, sign * drive.offset))
            if sign > 0:
                firsts.append(joint)
    actuator, source, scale, offset = zip(*rows, strict=True)
    drives = Drives(
        np.array(actuator, np.int64),
        np.array(source, np.int64),
        np.array(scale),
        np.array(offset),
        *(np.array(bound, np.float32).astype(np.float64) for bound in (spec.action_low, spec.action_high)),
    )
    return JointRobot(
        drives,
        round(1.0 / (spec.control_hz * model.opt.timestep)),
        model.jnt_qposadr[firsts].astype(np.int64),
        model.jnt_dofadr[firsts].astype(np.int64),
        np.array([drive.scale for drive in spec.drives]),
        np.array([drive.offset for drive in spec.drives]),
    )


def compile_stages(stages: Sequence[Stage], model: mujoco.MjModel) -> StageTable:
    """Flat arrays of `stages`; UserError for a geom that the model lacks."""
    touches = list(dict.fromkeys(touch for stage in stages for touch in (*stage.touching, *stage.apart)))
    table = StageTable(np.zeros((len(touches), model.ngeom), np.uint8), np.zeros((len(stages), len(touches)), np.int8))
    for row, touch in enumerate(touches):
        for names, bit in ((touch.geoms, 1), (touch.others, 2)):
            for name in names:
                geom = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name)
                if geom < 0:
                    raise UserError(f"a stage of the task speaks of geom '{name}', which the model lacks")
                table.side[row, geom] |= bit
    for row, stage in enumerate(stages):
        table.wanted[row, [touches.index(touch) for touch in stage.touching]] = 1
        table.wanted[row, [touches.index(touch) for touch in stage.apart]] = -1
    return table


class JointEnv(BaseEnv):
    """The physics of one episode at a time, driven by joint positions. Not for two threads at once.

    Args:
        model: the physics model.
        robot: where the robot is in `model`, from `find_joint_robot`.
        stages: from `compile_stages`.

    Attributes:
        seen: what an observation shows.
        held: bool [S], which stages are reached after the last step: all up to the highest one that holds.

    Example:
        env = JointEnv(model, find_joint_robot(task.robot, model), compile_stages(task.stages, model))
        env.reset(task.init_states[0])
        steps, status = env.run(actions)  # float32 [K, 14]
    """

    def __init__(self, model: mujoco.MjModel, robot: JointRobot, stages: StageTable) -> None:
        super().__init__(model)
        data = self.data
        self.robot = robot
        self.held = np.zeros(len(stages.wanted), np.bool_)
        self.seen = _Seen(data.xpos, data.xmat, data.qpos, data.qpos)
        self._arrays = data.qpos, data.qvel, data.ctrl
        self._stages = stages

    def reset(self, state: Array, start: Mapping[str, Array] | None = None) -> None:
        """Begin an episode; the actuators hold the joints where they are.

        Args:
            state: float64 [1 + nq + nv]: time, qpos, qvel.
            start: None; other robots have more to begin with.
        """
        assert start is None, "a robot that is driven by joint positions has no controller whose state is kept"
        self.set_state(state)
        model, data = self.model, self.data
        data.ctrl[:] = data.qpos[model.jnt_qposadr[model.actuator_trnid[:, 0]]]
        mujoco.mj_forward(model, data)
        self.held.fill(False)

    def run(self, actions: Array, reward: Array | None = None, *, stop: bool = True) -> tuple[int, int]:
        """Run up to K control steps; divergence of the physics ends them early.

        Args:
            actions: float [K, A], clipped to the robot's bounds.
            reward: float32 [K], receives 1 where the last stage is reached after a step.
            stop: whether success ends the run as well.

        Returns:
            (steps taken, kernel.RUNNING, SUCCESS or FAILED).
        """
        if reward is None:
            reward = np.zeros(len(actions), np.float32)
        robot = self.robot
        return run_joint_chunk(
            self.model._address,
            self.data._address,
            actions,
            robot.drives,
            robot.substeps,
            *self._arrays,
            self._stages,
            self.held,
            reward,
            stop,
        )

    def judge_start(self) -> None:
        """Evaluate the stages on the state after `reset`, into `held`."""
        judge_stages(self.data._address, self._stages, self.held)

    def proprio(self, out: Array) -> None:
        """out float32 [A]: the joints' positions, in the units of an action."""
        robot = self.robot
        out[:] = (self.data.qpos[robot.qpos] - robot.offset) / robot.scale
