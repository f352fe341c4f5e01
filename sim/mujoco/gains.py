"""The constants of the arm's controller."""

from __future__ import annotations

import math
from typing import NamedTuple

ARM = 7
"""Joints of the arm."""


class OscGains(NamedTuple):
    """Constants of operational space control.

    Args:
        kp, kd: spring (1/s^2) and damper (1/s) of the grip site.
        null_kp, null_kd: the same for the joints, in the null space.
        position_scale, rotation_scale: what an action of 1 asks for, in m and rad.
        grip_speed: change of the gripper command, which lives in [-1, 1], in one substep.
    """

    kp: float
    kd: float
    null_kp: float
    null_kd: float
    position_scale: float
    rotation_scale: float
    grip_speed: float


LIBERO_GAINS = OscGains(
    kp=150.0,
    kd=2.0 * math.sqrt(150.0),
    null_kp=10.0,
    null_kd=2.0 * math.sqrt(10.0),
    position_scale=0.05,
    rotation_scale=0.5,
    grip_speed=0.01,
)
"""Critically damped; the same in all six directions."""
