"""Where the tool and the gripper should be next, from actions or from a human's hand: as joints and as a width."""

from __future__ import annotations

import numpy as np

from embodied_rl.real_robot.core.cartesian import ControlLaw, PoseReference, rotation_matrix
from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.ik import InverseKinematics

_SAME_WIDTH = 1e-4
_LEASH = 0.15
"""How far the reference may run ahead of a joint's set point, rad: what the gate held back is caught up to there."""
_LEASH_M, _LEASH_RAD = 0.1, 0.5
"""How far the pose may run ahead of the set point's: more than a policy's wildest actions bring about on a free way.
What is asked beyond the arm's reach or speed is forgotten there."""


class Target:
    """The pose that the arm follows, the joints that bring it there, and the gripper's own gate.

    Args:
        robot: The arm.
        law: The controller of training.
        seconds: Length of a tick.
        base: The arm's base in the world of training, along whose axes actions point.

    Example:
        >>> target = Target(robot, ControlLaw(), 0.01, config.base)
        >>> target.act(action)
        >>> target.advance()
        >>> target.command(now_ns, "policy")
    """

    def __init__(self, robot: Robot, law: ControlLaw, seconds: float, base: Origin) -> None:
        self._robot, self._law, self._seconds, self._base = robot, law, seconds, base
        self._ik, self._gripper = InverseKinematics(robot), robot.gripper_gate()
        self._reference = self._at(*robot.chain.pose(robot.home), -1.0)
        self._wanted = robot.home.copy()
        self._width = 0.0

    def rest(self, angles: np.ndarray) -> None:
        """Begin at rest at joint angles [n], rad; the gripper keeps its command."""
        self._wanted = angles.copy()
        self._reference = self._at(*self._robot.chain.pose(angles), self._reference.grip)

    def start_gripper(self, width: float, now_ns: int) -> None:
        """Begin at a measured width, m; nothing for an arm without a gripper."""
        if self._gripper is None or self._robot.gripper is None:
            return
        limits = self._robot.gripper
        span = 1e-3 * float(limits.upper[0] - limits.lower[0])
        inside = float(np.clip(width, limits.lower[0] + span, limits.upper[0] - span))
        self._gripper.start(np.array([inside]), now_ns)
        self._width = inside
        share = (inside - limits.lower[0]) / (limits.upper[0] - limits.lower[0])
        self._reference = self._at(self._reference.position, self._reference.rotation, 1 - 2 * share)

    def act(self, action: np.ndarray | None) -> None:
        """Begin a control step with an action [7]; None: come to rest."""
        if action is None:
            self._reference.hold()
        else:
            self._reference.act(action)

    def advance(self) -> None:
        """Move on by a tick under the controller of training."""
        self._reference.advance(self._seconds)

    def by_hand(self, twist: np.ndarray, grip: float) -> None:
        """Move on by a tick at a human's velocity [6], m/s and rad/s, base frame; grip: -1 opens, 1 closes, 0 stays."""
        reference = self._reference
        position = reference.position + self._seconds * twist[:3]
        rotation = rotation_matrix(self._seconds * twist[3:]) @ reference.rotation
        closed = float(np.clip(reference.grip + grip * self._law.grip_rate * self._seconds, -1, 1))
        self._reference = self._at(position, rotation, closed)

    def command(self, now_ns: int, source: str) -> Command | None:
        """The joints that bring the tool nearest to the pose; None where there are none: the arm brakes."""
        found = self._ik.towards(self._wanted, self._reference.position, self._reference.rotation, self._seconds)
        if found is None:
            return None
        self._wanted = found[0]
        return Command(now_ns, self._robot.limits.names, found[0], found[1], source)

    def reached(self, angles: np.ndarray, *, braked: bool) -> None:
        """Go on from the set point where the gate braked or it lies too far behind, and never run away from it.

        Args:
            angles: The set point [n], rad.
            braked: Whether the gate had no command.
        """
        pose = self._robot.chain.pose(angles)
        if braked or np.abs(self._wanted - angles).max() > _LEASH:
            self._wanted = angles.copy()
            self._reference.moved_to(*pose)
        self._reference.keep_near(*pose, _LEASH_M, _LEASH_RAD)

    def width(self, now_ns: int) -> float | None:
        """The gripper's set point, m; None without a gripper."""
        limits, gate = self._robot.gripper, self._gripper
        if limits is None or gate is None:
            return None
        wanted = self._reference.width(float(limits.lower[0]), float(limits.upper[0]))
        if gate.at_rest and abs(wanted - self._width) < _SAME_WIDTH:
            return self._width
        decided = gate.decide(Command(now_ns, limits.names, [wanted]), now_ns)
        if decided.setpoint is not None:
            self._width = float(decided.setpoint.positions[0])
        return self._width

    def _at(self, position: np.ndarray, rotation: np.ndarray, grip: float) -> PoseReference:
        return PoseReference(self._law, position, rotation, grip, self._base)
