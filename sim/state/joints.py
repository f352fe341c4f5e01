"""The state of tasks whose robot is driven by joint positions, as one flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from embodied_rl.sim.mujoco.joint_env import JointEnv
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.types import Array

_POSE = 7


@dataclass(frozen=True, slots=True)
class JointStateLayout:
    """What the S numbers of a state are: A joint velocities in the units of an action a second, then the pose of each
    object, position (m, 3) and quaternion (wxyz, 4). Where the joints are is proprio.

    Args:
        joints: A.
        objects: room for so many.

    Example:
        >>> JointStateLayout(joints=14, objects=1).dim
        21
    """

    joints: int
    objects: int

    @classmethod
    def of(cls, tasks: Sequence[MujocoTask], objects: int) -> JointStateLayout:
        """Room for these tasks."""
        return cls(max(task.robot.action_dim for task in tasks), objects)

    @property
    def dim(self) -> int:
        """S."""
        return self.joints + self.objects * _POSE

    def reader(self, model: mujoco.MjModel) -> JointStateReader:
        """What reads such states of envs of this model."""
        return JointStateReader(self, model)


class JointStateReader:
    """Reads states of one model; mjData is read and never written."""

    def __init__(self, layout: JointStateLayout, model: mujoco.MjModel) -> None:
        self._joints = layout.joints
        free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
        self._objects = (model.jnt_qposadr[free][:, None] + np.arange(_POSE)).ravel()

    def read(self, env: JointEnv, out: Array) -> None:
        """Fill `out`, float32 [S], with the state of `env` now."""
        robot, poses = env.robot, env.data.qpos[self._objects]
        out[:] = 0.0
        out[: self._joints] = env.data.qvel[robot.dof] / robot.scale
        out[self._joints : self._joints + len(poses)] = poses
