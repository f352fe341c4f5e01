"""From a policy's Cartesian deltas to a moving pose: the controller of training as a reference that any arm can follow.

In simulation an action asks for a pose up to 0.05 m and 0.5 rad away, and operational space control pulls the tool
there as a critically damped mass would move: at 20 Hz and full action it gets 27 % of the way in a control step, or
somewhat less where the arm's inertia couples the directions. An arm that jumps to the asked pose moves almost four
times as fast as the policy has ever seen. So the reference integrates the same law, and the arm follows it: CRISP as
`target_pose`, MoveIt Servo as a twist, others by inverse kinematics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from embodied_rl.real_robot.core.kinematics import Origin

_MAX_SUBSTEP_S = 0.002
_STEADY_STEPS = 50
AS_TRAINED = Origin()
"""A base that is turned as the world of training is."""


@dataclass(frozen=True)
class ControlLaw:
    """The controller under which a policy was trained; the defaults are LIBERO's (robosuite's OSC_POSE) and ours.

    Args:
        rate_hz: Actions per second.
        position_scale: What an action of 1 asks for, m.
        rotation_scale: The same as a rotation vector, rad.
        kp: Spring, 1/s^2.
        kd: Damper, 1/s.
        grip_rate: Change of the gripper's command, which lives in [-1 (open), 1 (closed)], per s.
    """

    rate_hz: float = 20.0
    position_scale: float = 0.05
    rotation_scale: float = 0.5
    kp: float = 150.0
    kd: float = 2.0 * math.sqrt(150.0)
    grip_rate: float = 5.0

    @cached_property
    def share(self) -> float:
        """Share of what an action asks for that the tool moves in a control step, where the same is asked on and on.

        Less than kp / kd in the time of a step: the goal is set once in it, from where the tool is as it begins.
        """
        substeps = math.ceil(1 / self.rate_hz / _MAX_SUBSTEP_S - 1e-9)
        seconds, speed, moved = 1 / self.rate_hz / substeps, 0.0, 0.0
        for _ in range(_STEADY_STEPS):
            moved = 0.0
            for _ in range(substeps):
                speed += seconds * (self.kp * (1 - moved) - self.kd * speed)
                moved += seconds * speed
        return moved

    def speeds(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The steady velocities [3], m/s and rad/s along training's axes, of an action [7] in [-1, 1]."""
        share = self.share * self.rate_hz
        return share * self.position_scale * action[:3], share * self.rotation_scale * action[3:6]


def rotation_matrix(vector: np.ndarray) -> np.ndarray:
    """The rotation [3, 3] about axis times angle [3], rad (Rodrigues)."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = vector / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def quaternion_xyzw(rotation: np.ndarray) -> np.ndarray:
    """The unit quaternion x, y, z, w of a rotation matrix [3, 3], in ROS' order; w >= 0."""
    m = rotation
    # The largest of the four squares is at least 1/4: no division by something small (Shepperd's method).
    squares = np.array(
        [m[0, 0] - m[1, 1] - m[2, 2], m[1, 1] - m[0, 0] - m[2, 2], m[2, 2] - m[0, 0] - m[1, 1], np.trace(m)]
    )
    skew = np.array([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])
    largest = int(np.argmax(squares))
    if largest == 3:
        quaternion = np.append(skew, 1 + squares[3])
    else:
        sums = (m + m.T)[largest]
        quaternion = np.append(sums, skew[largest])
        quaternion[largest] = 1 + squares[largest]
    quaternion = quaternion / np.linalg.norm(quaternion)
    return quaternion if quaternion[3] >= 0 else -quaternion


class PoseReference:
    """The pose that the arm follows, in the base frame.

    Args:
        law: The controller of training.
        position: Where the tool is [3], m.
        rotation: How it is turned [3, 3].
        grip: The gripper's command now, in [-1 (open), 1 (closed)].
        base: The base frame in the world of training, along whose axes actions point.
        linear: How fast the tool moves now [3], m/s.

    Example:
        >>> reference = PoseReference(ControlLaw(), *robot.chain.pose(measured))
        >>> reference.act(action)  # at 20 Hz
        >>> reference.advance(0.01)  # at the rate of the set points
        >>> reference.position, reference.twist
    """

    def __init__(
        self,
        law: ControlLaw,
        position: np.ndarray,
        rotation: np.ndarray,
        grip: float = -1.0,
        base: Origin = AS_TRAINED,
        linear: Sequence[float] | np.ndarray = (0.0, 0.0, 0.0),
    ) -> None:
        self.law, self._to_base = law, base.rotation().T
        self.position, self.rotation = np.array(position, np.float64), np.array(rotation, np.float64)
        self._goal_position, self._goal_rotation = self.position.copy(), self.rotation.copy()
        self._linear, self._angular = np.array(linear, np.float64), np.zeros(3)
        self.grip, self._grip_sign = grip, 0.0

    @property
    def twist(self) -> np.ndarray:
        """Linear (m/s) and angular (rad/s) velocity in the base frame [6]."""
        return np.concatenate([self._linear, self._angular])

    def width(self, closed: float, opened: float) -> float:
        """The gripper's command as a width between `closed` and `opened`."""
        return closed + (opened - closed) * (1 - self.grip) / 2

    def act(self, action: np.ndarray) -> None:
        """Ask for a pose relative to the present one, as the simulator does.

        Args:
            action: [7], finite: position and rotation deltas in [-1, 1] (clipped) along the axes of training's
                world, gripper (its sign counts). A rotation of exactly zero keeps the goal's orientation.

        Raises:
            ValueError: Not 7 finite numbers.
        """
        if np.shape(action) != (7,) or not np.isfinite(action).all():
            raise ValueError(f"action {action!r} is not 7 finite numbers")
        delta = np.clip(np.asarray(action[:6], np.float64), -1, 1)
        self._goal_position = self.position + self._to_base @ delta[:3] * self.law.position_scale
        if delta[3:].any():
            turn = rotation_matrix(self._to_base @ delta[3:] * self.law.rotation_scale)
            self._goal_rotation = turn @ self.rotation
        self._grip_sign = float(np.sign(action[6]))

    def hold(self) -> None:
        """Ask for the present pose: the reference comes to rest near it."""
        self._goal_position, self._goal_rotation = self.position.copy(), self.rotation.copy()
        self._grip_sign = 0.0

    def moved_to(self, position: np.ndarray, rotation: np.ndarray) -> None:
        """Go on from another pose: where the gate rewrote the set point, so that the reference does not run ahead.

        Args:
            position: The set point's [3], m.
            rotation: The set point's [3, 3].
        """
        self._goal_position += position - self.position
        self.position, self.rotation = np.array(position, np.float64), np.array(rotation, np.float64)

    def keep_near(self, position: np.ndarray, rotation: np.ndarray, metres: float, radians: float) -> None:
        """Come back to within these distances of a pose: what the arm cannot follow must not add up.

        Args:
            position: The set point's [3], m.
            rotation: The set point's [3, 3].
            metres: The most between the positions.
            radians: The most between the orientations.
        """
        ahead = self.position - position
        far = float(np.linalg.norm(ahead))
        if far > metres:
            near = position + ahead * (metres / far)
            self._goal_position += near - self.position
            self.position = near
        *axis, cosine = quaternion_xyzw(self.rotation @ rotation.T)
        sine = float(np.linalg.norm(axis))
        if 2 * math.atan2(sine, cosine) > radians:
            self.rotation = rotation_matrix(np.array(axis) * (radians / sine)) @ rotation

    def advance(self, seconds: float) -> None:
        """Integrate the law (semi-implicit Euler, at most 2 ms a step, as the simulator does).

        Args:
            seconds: How long.
        """
        steps = max(1, math.ceil(seconds / _MAX_SUBSTEP_S - 1e-9))
        dt = seconds / steps
        for _ in range(steps):
            self._linear += dt * (self.law.kp * (self._goal_position - self.position) - self.law.kd * self._linear)
            # half the sum of the columns' cross products is the skew part of this
            across = self.rotation @ self._goal_rotation.T
            skew = across - across.T
            error = np.array([skew[1, 2], skew[2, 0], skew[0, 1]]) / 2
            self._angular += dt * (self.law.kp * error - self.law.kd * self._angular)
            self.position = self.position + dt * self._linear
            self.rotation = rotation_matrix(dt * self._angular) @ self.rotation
        u, _, vt = np.linalg.svd(self.rotation)  # rounding must not add up
        self.rotation = u @ vt
        self.grip = float(np.clip(self.grip + self._grip_sign * self.law.grip_rate * seconds, -1, 1))
