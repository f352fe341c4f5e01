"""Other views, lights and colours of a scene: pure changes of its visual model. Physics never sees them."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.types import Array

CAMERA = "agentview"
"""The camera that moves; the one in the hand stays where the robot carries it."""
_PIVOT = 0.9
"""Metres in front of the camera: about where the table's middle is, in LIBERO's scenes and in ours."""
_TURN, _TILT, _DOLLY = math.radians(12.0), math.radians(6.0), 0.10
"""Largest orbit sideways and up or down (rad), and change of distance (share), at level 1."""
_BRIGHTNESS, _SWING = 0.5, math.radians(25.0)
"""Largest change of a light's strength (share) and of its direction (rad), at level 1."""
_TINT = 0.35
"""Largest change of a colour channel (share), at level 1."""
_DEFAULT_GREY = np.array([0.5, 0.5, 0.5, 1.0], np.float32)
_OWN = ("robot0", "gripper0", "mount0")
"""Names of bodies that are the robot, which keeps its looks."""


def move_camera(model: mujoco.MjModel, rng: np.random.Generator, level: float) -> dict[str, Any]:
    """Orbit the camera about the scene in place, still looking at it; returns what was drawn.

    UserError when the scene has no such camera or it is not fixed to the world.
    """
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, CAMERA)
    if index < 0 or model.cam_bodyid[index] != 0:
        raise UserError(f"the scene has no camera '{CAMERA}' fixed to the world; leave 'camera' out of --perturb.")
    turn, tilt = level * _TURN * rng.uniform(-1, 1), level * _TILT * rng.uniform(-1, 1)
    dolly = 1.0 + level * _DOLLY * rng.uniform(-1, 1)
    axes = _matrix(model.cam_quat[index])
    pivot = model.cam_pos[index] - _PIVOT * axes[:, 2]  # a camera looks along its own -z
    # sideways about the world's vertical, then up or down about the camera's own right
    orbit = _rotation(np.array([0.0, 0.0, 1.0]), turn) @ _rotation(axes[:, 0], tilt)
    model.cam_pos[index] = pivot + dolly * (orbit @ (model.cam_pos[index] - pivot))
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, (orbit @ axes).ravel())
    model.cam_quat[index] = quat
    return {"turn_deg": math.degrees(turn), "tilt_deg": math.degrees(tilt), "distance": dolly}


def change_light(model: mujoco.MjModel, rng: np.random.Generator, level: float) -> dict[str, Any]:
    """Scale and swing every light in place, the headlight's strength too; returns what was drawn."""
    strength = 1.0 + level * _BRIGHTNESS * rng.uniform(-1, 1)
    warmth = 1.0 + 0.3 * level * _BRIGHTNESS * rng.uniform(-1, 1) * np.array([1.0, 0.0, -1.0])
    colour = np.maximum(strength * warmth, 0.0)
    for light in range(model.nlight):
        axis = rng.normal(size=3)
        angle = level * _SWING * rng.uniform(-1, 1)
        swing = _rotation(axis / np.linalg.norm(axis), angle)
        model.light_dir[light] = swing @ model.light_dir[light]
    for part in (model.light_ambient, model.light_diffuse, model.light_specular):
        part[:] = np.clip(part * colour, 0.0, 1.0)
    head = model.vis.headlight
    for name in ("ambient", "diffuse", "specular"):
        getattr(head, name)[:] = np.clip(getattr(head, name) * colour, 0.0, 1.0)
    return {"strength": strength, "colour": colour.tolist()}


def change_colours(model: mujoco.MjModel, rng: np.random.Generator, level: float) -> dict[str, Any]:
    """Tint everything that stands still (floor, walls, table, fixtures) in place, texture or not; one tint a body.

    Objects that move keep their colours, by which instructions name them. Returns how many bodies were tinted.
    """
    tinted = 0
    for body in range(model.nbody):
        geoms = np.flatnonzero(model.geom_bodyid == body)
        if model.body_weldid[body] != 0 or not len(geoms) or model.body(body).name.startswith(_OWN):
            continue
        tint = 1.0 + level * _TINT * rng.uniform(-1, 1, 3)
        for geom in geoms:
            colour = _colour(model, int(geom)).copy()
            colour[:3] = np.clip(colour[:3] * tint, 0.0, 1.0)
            model.geom_rgba[geom] = colour  # a geom's own colour wins over its material's, and tints its texture
        tinted += 1
    return {"bodies": tinted}


def _colour(model: mujoco.MjModel, geom: int) -> Array:
    """MuJoCo's rule: the material's colour unless the geom has one of its own (not the default grey)."""
    own, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    return model.mat_rgba[material] if material >= 0 and np.array_equal(own, _DEFAULT_GREY) else own


def _matrix(quat: Array) -> Array:
    out = np.empty(9)
    mujoco.mju_quat2Mat(out, quat)
    return out.reshape(3, 3)


def _rotation(axis: Array, angle: float) -> Array:
    quat = np.empty(4)
    mujoco.mju_axisAngle2Quat(quat, axis, angle)
    return _matrix(quat)
