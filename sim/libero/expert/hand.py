"""The Panda's hand as boxes, in the frame of its grip site: x opens, y lies across the fingers, z is the approach.

Sizes are those of the collision geoms of robosuite's PandaGripper, m.
"""

from __future__ import annotations

import numpy as np

from embodied_rl.sim.libero.expert.geometry import UP, angle_between, unit
from embodied_rl.types import Array

OPENING = 0.039
"""Distance of each pad from the middle when the hand is open."""
HALF_OPENING = 0.022
"""The same with the gripper half open."""
PALM = -0.031
"""The palm's lower face."""
TIP = 0.0092
"""How far the fingers reach beyond the grip site."""
PAD_TOP, PAD_TIP, PAD_WIDTH = -0.0116, 0.0044, 0.008
"""The pads' reach along z, and half their width along y."""
LONGEST_STRETCH = 0.695
"""See `stretch`."""
_FINGER_THICK, _FINGER_WIDTH, _FINGER_TOP = 0.027, 0.0105, -0.0445
_PALM_X, _PALM_Y, _PALM_TOP = 0.101, 0.028, -0.123
_WRIST, _WRIST_LOW, _WRIST_TOP = 0.075, -0.125, -0.30
_WRIST_BACK, _WRIST_ASIDE = 0.204, 0.088
"""From the grip site back to the wrist's joint, and that joint's offset from the forearm's end."""


def hand_frame(approach: Array, opening: Array) -> Array:
    """Rotation [3, 3] of a hand that points along `approach` and opens along `opening`."""
    z = unit(approach)
    x = unit(opening - z * (z @ opening))
    return np.column_stack([x, np.cross(z, x), z])


DOWN = hand_frame(-UP, np.array([0.0, 1.0, 0.0]))
"""The hand as an episode begins: it points down and opens along the world's y."""


def nearest_to_down(*frames: Array) -> Array:
    """The one of several hands that is turned least from DOWN."""
    return min(frames, key=lambda frame: angle_between(frame, DOWN))


def hits(points: Array, opening: float, margin: float, sweep: float = 0.0) -> Array:
    """Which points a hand would touch.

    Args:
        points: float64 [n, 3], m, in the hand's frame.
        opening: of each finger, m.
        margin: room to keep around the hand, m.
        sweep: m that the hand comes along its approach before it is there.

    Returns:
        bool [n].
    """
    x, y, z = np.abs(points[:, 0]), np.abs(points[:, 1]), points[:, 2]
    fingers = (x > opening - 0.001) & (x < opening + _FINGER_THICK + margin) & (y < _FINGER_WIDTH + margin)
    fingers &= (z > _FINGER_TOP - sweep) & (z < TIP + margin)
    palm = (x < _PALM_X + margin) & (y < _PALM_Y + margin) & (z < PALM + margin) & (z > _PALM_TOP - sweep)
    wrist = (x < _WRIST) & (y < _WRIST) & (z < _WRIST_LOW) & (z > _WRIST_TOP - sweep)
    return np.asarray(fingers | palm | wrist)


def stretch(position: Array, frame: Array, shoulder: Array) -> float:
    """Distance (m) of the wrist from the shoulder with the grip site in that pose.

    The elbow is straight at 0.70: there the controller stands still for ever.
    """
    wrist = position - _WRIST_BACK * frame[:, 2] - shoulder
    return float(np.hypot(np.hypot(wrist[0], wrist[1]) + _WRIST_ASIDE * frame[2, 2], wrist[2]))
