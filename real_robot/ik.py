"""Differential inverse kinematics for arms whose controllers take joints: mink on a MuJoCo model of the arm's file.

mink is loaded where it is used, so that an arm whose controller takes poses needs neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.robot import Robot

INSTALL = "pip install 'embodied-rl[ik]'"
_SOLVER = "daqp"
_POSTURE_COST = 1e-2
"""Pull of the home pose in directions that the tool does not feel, against 1 for the tool's pose."""
_DAMPING = 1e-3
"""Levenberg-Marquardt damping of the pose: keeps steps small near singular poses."""


class InverseKinematics:
    """Finds the joint motion that brings the tool nearest to a pose, within ranges and velocity limits.

    Args:
        robot: The arm.

    Raises:
        UserError: mink is not installed.

    Example:
        >>> ik = InverseKinematics(robot)
        >>> positions, velocities = ik.towards(setpoint, reference.position, reference.rotation, seconds=0.01)
    """

    def __init__(self, robot: Robot) -> None:
        try:
            import mink
            import mujoco
        except ImportError as error:
            raise UserError(f"inverse kinematics needs mink ({error}): {INSTALL}") from None
        self._mink = mink
        model = mujoco.MjModel.from_xml_string(model_xml(robot))
        self._configuration = mink.Configuration(model, robot.home)
        self._pose = mink.FrameTask("tool", "site", position_cost=1.0, orientation_cost=1.0, lm_damping=_DAMPING)
        posture = mink.PostureTask(model, cost=_POSTURE_COST)
        posture.set_target(robot.home)
        self._tasks: list[Any] = [self._pose, posture]
        speeds = dict(zip(robot.limits.names, robot.limits.velocity[:, None], strict=True))
        self._limits = [mink.ConfigurationLimit(model), mink.VelocityLimit(model, speeds)]

    def towards(
        self, angles: np.ndarray, position: np.ndarray, rotation: np.ndarray, seconds: float
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """One step towards a pose.

        Args:
            angles: The last set point [n], rad, within the joints' ranges.
            position: Where the tool should be [3], m, base frame.
            rotation: How it should be turned [3, 3].
            seconds: Length of the step.

        Returns:
            Joint positions [n] (rad) and velocities [n] (rad/s) for a command; None if the solver finds none: hold.
        """
        mink = self._mink
        self._configuration.update(np.asarray(angles, np.float64))
        turn = mink.SO3.from_matrix(rotation)
        self._pose.set_target(mink.SE3.from_rotation_and_translation(turn, np.asarray(position, np.float64)))
        try:
            velocities = mink.solve_ik(self._configuration, self._tasks, seconds, _SOLVER, limits=self._limits)
        except mink.NoSolutionFound:
            return None
        return angles + velocities * seconds, velocities


def model_xml(robot: Robot) -> str:
    """The arm as a MuJoCo model: joints with their ranges, and a site `tool`; masses are of no meaning."""
    chain, limits = robot.chain, robot.limits
    opened = []
    for name, origin, axis, lower, upper in zip(
        limits.names, chain.origins, chain.axes, limits.lower, limits.upper, strict=True
    ):
        opened.append(
            f'<body pos="{_words(origin.xyz)}" euler="{_words(origin.rpy)}"><inertial pos="0 0 0" mass="1" '
            f'diaginertia="1 1 1"/><joint name="{name}" axis="{_words(axis)}" range="{_words((lower, upper))}"/>'
        )
    tool = f'<site name="tool" pos="{_words(chain.tool.xyz)}" euler="{_words(chain.tool.rpy)}"/>'
    arm = "".join(opened) + tool + "</body>" * len(opened)
    # URDF's rpy turns about fixed axes: capital letters.
    compiler = '<compiler angle="radian" eulerseq="XYZ" autolimits="true"/>'
    return f"<mujoco>{compiler}<worldbody>{arm}</worldbody></mujoco>"


def _words(numbers: tuple[float, ...]) -> str:
    return " ".join(repr(float(number)) for number in numbers)
