"""A scripted expert for ALOHA's two tasks: both grippers go through poses that follow from where the objects begin.

It reads an observation's state, no picture and no simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mujoco
import numpy as np

from embodied_rl.sim.aloha.arms import Arm, turned
from embodied_rl.sim.aloha.robot import ARM_HOME, NAMES, SIDES
from embodied_rl.types import Array

_OPEN, _SHUT = 1.0, 0.0
_DOWN = math.radians(60.0)
"""How far grippers point down when they take something from the table."""
_JOINTS, _POSE = len(NAMES), 7
_GAIN, _FASTEST = 0.15, 0.003
"""Share of what is wrong that a control step mends, and at most so much (m)."""


@dataclass(frozen=True, slots=True)
class Pose:
    """Where one gripper shall be `step` control steps after an episode's start.

    Args:
        step: it gets there then, from its pose before.
        position: [3], m, between the fingertips.
        pitch, roll: see `arms.turned`.
        grip: 0 shut to 1 open.
        follow: not the gripper's position but that of the peg from the socket.
    """

    step: int
    position: tuple[float, float, float]
    pitch: float
    grip: float
    roll: float = 0.0
    follow: bool = False


def transfer_plan(cube: Array) -> dict[str, list[Pose]]:
    """cube: [3], where it begins."""
    x, y = float(cube[0]), float(cube[1])
    meet, height = 0.5, 0.27
    reach = 0.0215
    """From the cube's middle to between the left fingertips, whose ends then lie 8 mm over its edge."""
    quarter = math.pi / 2
    return {
        "right": [
            Pose(45, (x, y, 0.12), _DOWN, _OPEN),
            Pose(70, (x, y, 0.022), _DOWN, _OPEN),
            Pose(80, (x, y, 0.022), _DOWN, _OPEN),
            Pose(95, (x, y, 0.022), _DOWN, _SHUT),
            Pose(120, (x, y, 0.16), _DOWN, _SHUT),
            Pose(170, (0.0, meet, height), 0.0, _SHUT),
        ],
        "left": [
            Pose(90, (-0.14, meet, height), 0.0, _OPEN, quarter),
            Pose(185, (-0.14, meet, height), 0.0, _OPEN, quarter),
            Pose(215, (-reach, meet, height), 0.0, _OPEN, quarter),
            Pose(225, (-reach, meet, height), 0.0, _OPEN, quarter),
            Pose(245, (-reach, meet, height), 0.0, _SHUT, quarter),
        ],
    }


def insertion_plan(peg: Array, socket: Array) -> dict[str, list[Pose]]:
    """peg, socket: [3], where they begin."""
    px, py, sx, sy = (float(value) for value in (*peg[:2], *socket[:2]))
    hold, low, height = 0.02, 0.02, 0.2
    """Objects are held so far from their middles, away from each other."""
    at, away, inside = -0.08, 0.17, 0.085
    """x of the socket in the air; of the peg from there, before and after it is pushed in (the pin begins at 0.1)."""
    return {
        "right": [
            Pose(45, (px + hold, py, 0.12), _DOWN, _OPEN),
            Pose(70, (px + hold, py, low), _DOWN, _OPEN),
            Pose(80, (px + hold, py, low), _DOWN, _OPEN),
            Pose(95, (px + hold, py, low), _DOWN, _SHUT),
            Pose(125, (px + hold, py, height), _DOWN, _SHUT),
            Pose(170, (at + away + hold, 0.5, height), _DOWN, _SHUT),
            Pose(200, (away, 0.0, 0.0), _DOWN, _SHUT, follow=True),
            Pose(300, (inside, 0.0, 0.0), _DOWN, _SHUT, follow=True),
        ],
        "left": [
            Pose(45, (sx - hold, sy, 0.12), _DOWN, _OPEN),
            Pose(70, (sx - hold, sy, low), _DOWN, _OPEN),
            Pose(80, (sx - hold, sy, low), _DOWN, _OPEN),
            Pose(95, (sx - hold, sy, low), _DOWN, _SHUT),
            Pose(125, (sx - hold, sy, height), _DOWN, _SHUT),
            Pose(170, (at - hold, 0.5, height), _DOWN, _SHUT),
        ],
    }


class Expert:
    """Solves one of ALOHA's tasks, one control step at a time.

    It begins with an episode: its plan follows from the first state.

    Args:
        suite: of the task.
        model: of the task's scene.

    Example:
        expert = Expert("aloha_transfer_cube", model)
        action = expert.act(state)  # float64 [14]
    """

    def __init__(self, suite: str, model: mujoco.MjModel) -> None:
        self._insertion = suite == "aloha_insertion"
        self._arms = {side: Arm(model, side) for side in SIDES}
        self._step = 0
        self._ways: dict[str, _Way] = {}

    def act(self, state: Array) -> Array:
        """The next action, float64 [14]; state: [S], as `JointStateLayout` says."""
        objects = state[_JOINTS:].reshape(-1, _POSE)[:, :3].astype(np.float64)
        if not self._ways:
            plan = insertion_plan(*objects) if self._insertion else transfer_plan(objects[0])
            self._ways = {side: _Way(self._arms[side], side, plan[side]) for side in SIDES}
        self._step += 1
        gap = objects[0] - objects[-1]
        return np.concatenate([self._ways[side].at(self._step, gap) for side in SIDES])


class _Way:
    """What one arm does: joint positions at each pose, and between them."""

    def __init__(self, arm: Arm, side: str, poses: list[Pose]) -> None:
        self._arm, self._poses, self._side = arm, poses, side
        self._joints = [np.array(ARM_HOME)]
        for pose in poses:
            if not pose.follow:
                self._joints.append(arm.place(np.array(pose.position), turned(side, pose.pitch, pose.roll)))

    def at(self, step: int, gap: Array) -> Array:
        """Joint positions and grip in control step `step`, float64 [7]; gap: [3], from the socket to the peg."""
        index = next((i for i, pose in enumerate(self._poses) if step <= pose.step), len(self._poses) - 1)
        pose, before = self._poses[index], self._poses[index - 1] if index else None
        begin, grip = (before.step, before.grip) if before else (0, _OPEN)
        share = min(1.0, (step - begin) / (pose.step - begin))
        grip += share * (pose.grip - grip)
        if pose.follow:
            assert before is not None
            start = np.array(before.position) if before.follow else gap
            wanted = start + share * (np.array(pose.position) - start) if before.follow else np.array(pose.position)
            here, _ = self._arm.pose()
            change = np.clip(_GAIN * (wanted - gap), -_FASTEST, _FASTEST)
            return np.array([*self._arm.solve(here + change, turned(self._side, pose.pitch, pose.roll)), grip])
        smooth = 0.5 - 0.5 * math.cos(math.pi * share)
        first, last = self._joints[index], self._joints[index + 1]
        self._arm.joints = first + smooth * (last - first)
        return np.array([*self._arm.joints, grip])
