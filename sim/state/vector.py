"""The state of an env as one flat vector of a fixed layout, for state policies and critics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco

from embodied_rl.errors import UserError
from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.kernel import Robot
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.state.facts import KINDS, Facts
from embodied_rl.types import Array

_AXES, _QUAT = ("x", "y", "z"), ("qw", "qx", "qy", "qz")
_ROBOT = (
    *(f"arm_pos{i}" for i in range(1, 8)),
    *(f"arm_vel{i}" for i in range(1, 8)),
    *("finger_pos1", "finger_pos2", "finger_vel1", "finger_vel2"),
    *(f"eef_{axis}" for axis in (*_AXES, *_QUAT)),
)
_OBJECT = ("present", *_AXES, *_QUAT, "vx", "vy", "vz", "wx", "wy", "wz")
_JOINT = ("present", "pos", "vel")
_FACT = (
    "present",
    "held",
    *(f"is_{kind.__name__}" for kind in KINDS),
    *(f"reach_{axis}" for axis in _AXES),
    *(f"place_{axis}" for axis in _AXES),
    "gap",
)
_ROBOT_JOINTS = 9
"""Joints of the Panda: the arm's and the fingers'."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What the S numbers of a state are: robot, objects, joints of fixtures, facts of the goal, each block padded.

    A suite's tasks differ in objects, so there is room for the suite's most. What the goal speaks of comes first, in
    the goal's order, then the rest in the model's order: slot 0 is what the task is about, in every task. Slots that a
    task lacks are zeros. The facts say what is wanted, so one policy can learn all tasks of a suite.

    * robot, 25: arm joint positions (rad, 7) and velocities (7), finger positions (m, 2) and velocities (2), grip site
      position (m, 3), hand quaternion (wxyz, 4).
    * object, 14 each: present (0 or 1), position (m, 3), quaternion (wxyz, 4), velocity (m/s, 3), angular velocity in
      the object's frame (rad/s, 3).
    * joint, 3 each: present, position (m or rad), velocity.
    * fact, 15 each: present, held, kind (one-hot, 6), from the grip site to what must move (m, 3), from there to where
      it must be (m, 3), how far a joint must still move (m or rad, negative beyond).

    Args:
        objects, joints, facts: room for so many of each.

    Example:
        >>> layout = StateLayout.of(load_suite("tabletop_goal"))
        >>> layout.dim, layout.names()[:2]
        (74, ('arm_pos1', 'arm_pos2'))
    """

    objects: int
    joints: int
    facts: int

    @classmethod
    def of(cls, tasks: Sequence[MujocoTask]) -> StateLayout:
        """Room for each of these tasks, read off their initial states: no model is built."""
        sizes = [_free_and_single(task) for task in tasks]
        return cls(
            max(free for free, _ in sizes), max(single for _, single in sizes), max(len(task.goal) for task in tasks)
        )

    @property
    def dim(self) -> int:
        """S."""
        return len(_ROBOT) + self.objects * len(_OBJECT) + self.joints * len(_JOINT) + self.facts * len(_FACT)

    def names(self) -> tuple[str, ...]:
        """S names, such as 'object0_x'."""
        blocks = (("object", self.objects, _OBJECT), ("joint", self.joints, _JOINT), ("fact", self.facts, _FACT))
        return (*_ROBOT, *(f"{name}{i}_{of}" for name, count, parts in blocks for i in range(count) for of in parts))


class StateReader:
    """Reads states of one task's model; mjData is read and never written.

    Raises:
        UserError: the task has more objects, joints or facts than the layout has room for.
    """

    def __init__(self, layout: StateLayout, task: MujocoTask, model: mujoco.MjModel, facts: Facts) -> None:
        self._robot: Robot = find_robot(model)
        self._finger_dof = [int(model.joint(f"gripper0_finger_joint{i}").dofadr[0]) for i in (1, 2)]
        self._facts = facts
        objects, joints = _ordered(model, self._robot, facts)
        if len(objects) > layout.objects or len(joints) > layout.joints or len(facts) > layout.facts:
            raise UserError(
                f"task '{task.name}' has {len(objects)} objects, {len(joints)} joints and {len(facts)} goal facts: too "
                f"many for {layout}; make it with StateLayout.of of all tasks"
            )
        at = len(_ROBOT)
        object_at = [at + i * len(_OBJECT) for i in range(len(objects))]
        at += layout.objects * len(_OBJECT)
        joint_at = [at + i * len(_JOINT) for i in range(len(joints))]
        at += layout.joints * len(_JOINT)
        self._fact_at = [at + i * len(_FACT) for i in range(len(facts))]
        self._objects = [(*_addresses(model, joint), at + 1) for joint, at in zip(objects, object_at, strict=True)]
        self._joints = [(*_addresses(model, joint), at + 1) for joint, at in zip(joints, joint_at, strict=True)]
        kinds = [at + 2 + kind for at, kind in zip(self._fact_at, facts.kind, strict=True)]
        self._ones = [*object_at, *joint_at, *self._fact_at, *kinds]

    def read(self, env: Env, out: Array) -> None:
        """Fill `out`, float32 [S], with the state of `env` now."""
        data, robot = env.data, self._robot
        qpos, qvel = data.qpos, data.qvel
        out[:] = 0.0
        out[:7], out[7:14] = qpos[robot.qpos], qvel[robot.dof]
        out[14:16], out[16:18] = qpos[robot.finger_qpos], qvel[self._finger_dof]
        out[18:21], out[21:25] = data.site_xpos[robot.site], data.xquat[robot.hand]
        out[self._ones] = 1.0
        for q, v, at in self._objects:
            out[at : at + 7], out[at + 7 : at + 13] = qpos[q : q + 7], qvel[v : v + 6]
        for q, v, at in self._joints:
            out[at], out[at + 1] = qpos[q], qvel[v]
        for fact, at in enumerate(self._fact_at):
            far = self._facts.distances(data, fact)
            out[at + 1] = env.held[fact]
            out[at + 8 : at + 11], out[at + 11 : at + 14], out[at + 14] = far.reach, far.place, far.gap


def _free_and_single(task: MujocoTask) -> tuple[int, int]:
    """How many free joints (7 + 6 numbers) and other joints of fixtures (1 + 1) a state [time, qpos, qvel] has room
    for. Unique while there are fewer than 13 of the latter."""
    rest = task.init_states.shape[1] - 1 - 2 * _ROBOT_JOINTS
    free = next(n for n in range(rest // 13, -1, -1) if (rest - 13 * n) % 2 == 0)
    return free, (rest - 13 * free) // 2


def _addresses(model: mujoco.MjModel, joint: int) -> tuple[int, int]:
    return int(model.jnt_qposadr[joint]), int(model.jnt_dofadr[joint])


def _ordered(model: mujoco.MjModel, robot: Robot, facts: Facts) -> tuple[list[int], list[int]]:
    """The free joints and the other joints that are not the robot's, those that the goal speaks of first."""
    own = {*robot.qpos.tolist(), *robot.finger_qpos.tolist()}
    free_type = int(mujoco.mjtJoint.mjJNT_FREE)
    free = [i for i in range(model.njnt) if int(model.jnt_type[i]) == free_type]
    single = [i for i in range(model.njnt) if i not in free and int(model.jnt_qposadr[i]) not in own]
    wanted = [int(model.body_jntadr[body]) for body in facts.bodies]
    wanted += [joint for joints in facts.joints for joint in joints]
    wanted += [int(model.body_jntadr[body]) for body in facts.target_bodies]  # -1 where a body has none
    first = list(dict.fromkeys(wanted))
    return _front(free, first), _front(single, first)


def _front(joints: list[int], first: list[int]) -> list[int]:
    front = [joint for joint in first if joint in joints]
    return [*front, *(joint for joint in joints if joint not in front)]
