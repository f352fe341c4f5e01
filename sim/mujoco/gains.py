"""Constants of the operational space controller."""

from __future__ import annotations

import math
from typing import NamedTuple


class OscGains(NamedTuple):
    """The controller's constants. kp (1/s^2), kd (1/s): spring and damper of the grip site, and of the null space.

    position_scale (m), rotation_scale (rad): what an action of 1 asks for. grip_speed: change of the gripper command,
    which lives in [-1, 1], in one substep.
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
