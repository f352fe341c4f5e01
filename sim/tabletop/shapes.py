"""Primitive shapes, and how they become MuJoCo geoms.

A body is described once by a list of shapes. The physics model takes the `solid` ones, the visual model those with a
colour, so that a cheap collision form and a good-looking one share one frame, one name and one inertia.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import mujoco

RGBA = tuple[float, float, float, float]

GEOM_TYPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
    "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
}


class Layer(IntEnum):
    """Collision groups as contype bits; `COLLIDES_WITH` holds the conaffinity of each."""

    FIXTURE = 1
    OBJECT = 2
    GRIPPER = 4


# Fixtures never test each other; fingers test fixtures and objects but not one another (their joint limits do that).
COLLIDES_WITH = {
    Layer.FIXTURE: 0,
    Layer.OBJECT: Layer.FIXTURE | Layer.OBJECT | Layer.GRIPPER,
    Layer.GRIPPER: Layer.FIXTURE | Layer.OBJECT,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """One primitive in the frame of its body.

    size: MuJoCo half sizes in metres. pos: metres. quat: w, x, y, z. ends: the two end points of a capsule or cylinder,
    instead of pos and quat (size then holds the radius only). rgba: None keeps it out of the visual model.
    solid: takes part in collisions (physics model only).
    """

    kind: str
    size: tuple[float, ...]
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    ends: tuple[float, ...] | None = None
    rgba: RGBA | None = None
    solid: bool = True


def geom_names(prefix: str, shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Names of the collision geoms that `add_shapes` gives to `shapes` in the physics model."""
    return tuple(f"{prefix}_g{i}" for i, shape in enumerate(shapes) if shape.solid)


def add_shapes(
    body: Any, prefix: str, shapes: tuple[Shape, ...], *, visual: bool, layer: Layer, **contact: Any
) -> None:
    """Add the shapes of one kind of model to an mjSpec body; `contact` sets friction, solref, ... of solid geoms."""
    for i, shape in enumerate(shapes):
        if (shape.rgba is None) if visual else not shape.solid:
            continue
        size = [*shape.size, *([0.0] * (3 - len(shape.size)))]
        geom = body.add_geom(name=f"{prefix}_g{i}", type=GEOM_TYPES[shape.kind], size=size)
        if shape.ends is not None:
            geom.fromto = shape.ends
        else:
            geom.pos, geom.quat = shape.pos, shape.quat
        if visual:
            geom.contype, geom.conaffinity, geom.rgba = 0, 0, shape.rgba
            continue
        geom.contype, geom.conaffinity = layer, COLLIDES_WITH[layer]
        for key, value in contact.items():
            setattr(geom, key, value)
