"""Other views, lights and colours of a scene: each a draw, and a change of the visual model that depends on it alone.

Physics never sees them. The changes are in place: give them a copy.
"""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.rng import philox
from embodied_rl.types import Array

Values = dict[str, Any]
"""Plain values."""
CAMERA = "agentview"
"""The camera that moves; the one in the hand stays where the robot carries it."""
_PIVOT = 0.9
"""Metres in front of the camera: about where the table's middle is, in LIBERO's scenes and in ours."""
_TURN, _TILT, _DOLLY = 12.0, 6.0, 0.10
"""Largest orbit sideways and up or down (degrees), and change of distance (share), at level 1."""
_BRIGHTNESS, _WARMTH, _SWING = 0.5, 0.15, 25.0
"""Largest change of a light's strength and of its red against its blue (shares), and of its direction (degrees)."""
_TINT = 0.35
"""Largest change of a colour channel (share), at level 1."""
_DEFAULT_GREY = np.array([0.5, 0.5, 0.5, 1.0], np.float32)
_OWN = ("robot0", "gripper0", "mount0")
"""Names of bodies that are the robot, which keeps its looks."""


def draw_camera(rng: np.random.Generator, level: float) -> Values:
    """Orbit sideways and up or down (degrees), and the new distance as a share of the old."""
    turn, tilt, dolly = level * rng.uniform(-1, 1, 3) * (_TURN, _TILT, _DOLLY)
    return {"turn_deg": turn, "tilt_deg": tilt, "distance": 1.0 + dolly}


def move_camera(model: mujoco.MjModel, drawn: Values) -> None:
    """Orbit the camera about the scene, still looking at it. UserError when no such camera is fixed to the world."""
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, CAMERA)
    if index < 0 or model.cam_bodyid[index] != 0:
        raise UserError(f"the scene has no camera '{CAMERA}' fixed to the world; leave 'camera' out of --perturb.")
    axes = _matrix(model.cam_quat[index])
    pivot = model.cam_pos[index] - _PIVOT * axes[:, 2]  # a camera looks along its own -z
    # sideways about the world's vertical, up or down about the camera's own right
    orbit = _rotation(np.array([0.0, 0.0, 1.0]), drawn["turn_deg"]) @ _rotation(axes[:, 0], drawn["tilt_deg"])
    model.cam_pos[index] = pivot + drawn["distance"] * (orbit @ (model.cam_pos[index] - pivot))
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, (orbit @ axes).ravel())
    model.cam_quat[index] = quat


def draw_light(rng: np.random.Generator, level: float) -> Values:
    """Factor on each colour channel of every light, and how far (degrees, about which axis) they swing."""
    strength = 1.0 + level * _BRIGHTNESS * rng.uniform(-1, 1)
    warmth = level * _WARMTH * rng.uniform(-1, 1)
    axis = rng.normal(size=3)
    return {
        "colour": [max(0.0, strength * factor) for factor in (1.0 + warmth, 1.0, 1.0 - warmth)],
        "axis": (axis / np.linalg.norm(axis)).tolist(),
        "swing_deg": level * _SWING * rng.uniform(-1, 1),
    }


def change_light(model: mujoco.MjModel, drawn: Values) -> None:
    """Scale and swing every light; the headlight, which moves with the camera, is only scaled."""
    swing, colour = _rotation(np.array(drawn["axis"]), drawn["swing_deg"]), np.array(drawn["colour"])
    model.light_dir[:] = model.light_dir @ swing.T
    head = model.vis.headlight
    own = (model.light_ambient, model.light_diffuse, model.light_specular)
    for part in (*own, head.ambient, head.diffuse, head.specular):
        part[:] = np.clip(part * colour, 0.0, 1.0)


def draw_colours(rng: np.random.Generator, level: float) -> Values:
    """Largest change of a channel (share), and the seed of the bodies' tints."""
    return {"amount": level * _TINT, "seed": int(rng.integers(2**62))}


def change_colours(model: mujoco.MjModel, drawn: Values) -> None:
    """Tint everything that stands still (floor, walls, table, fixtures), texture or not; one tint a body.

    Objects that move keep their colours, by which instructions name them, and so does the robot.
    """
    for body in range(model.nbody):
        if model.body_weldid[body] != 0 or model.body(body).name.startswith(_OWN):
            continue
        tint = 1.0 + drawn["amount"] * philox(drawn["seed"], body).uniform(-1, 1, 3)
        for geom in np.flatnonzero(model.geom_bodyid == body):
            colour = _colour(model, int(geom)).copy()
            colour[:3] = np.clip(colour[:3] * tint, 0.0, 1.0)
            model.geom_rgba[geom] = colour  # a geom's own colour wins over its material's, and tints its texture


def _colour(model: mujoco.MjModel, geom: int) -> Array:
    """MuJoCo's rule: the material's colour unless the geom has one of its own (not the default grey)."""
    own, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    return model.mat_rgba[material] if material >= 0 and np.array_equal(own, _DEFAULT_GREY) else own


def _matrix(quat: Array) -> Array:
    out = np.empty(9)
    mujoco.mju_quat2Mat(out, quat)
    return out.reshape(3, 3)


def _rotation(axis: Array, degrees: float) -> Array:
    quat = np.empty(4)
    mujoco.mju_axisAngle2Quat(quat, axis, math.radians(degrees))
    return _matrix(quat)
