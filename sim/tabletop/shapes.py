"""Primitive shapes, and how they become MuJoCo geoms.

A body is described once by a list of shapes. The physics model takes the `solid` ones, the visual model those with a
colour, so that a cheap collision form and a good-looking one share one frame, one name and one inertia.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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


class Layer(Enum):
    """Who collides with whom: (contype, conaffinity) of a geom.

    Fixtures never test each other; fingers test fixtures and objects but not one another (their joint limits do that).
    An upright cylinder is a SHELL for fingers, walls and other objects around a CORE box that stands on table and
    fixtures: MuJoCo 4.0 computes wrong distances between a plane and a cylinder upright to within rounding.
    """

    FIXTURE = (1, 0)
    OBJECT = (2, 1 | 2 | 4 | 8)
    GRIPPER = (4, 1 | 2 | 8)
    TABLE = (8, 0)
    SHELL = (2, 1 | 2 | 4)
    CORE = (16, 1 | 8)


@dataclass(frozen=True, slots=True)
class Shape:
    """One primitive in the frame of its body.

    size: MuJoCo half sizes in metres. pos: metres. quat: w, x, y, z. ends: the two end points of a capsule or cylinder,
    instead of pos and quat (size then holds the radius only). rgba: None keeps it out of the visual model.
    solid: takes part in collisions (physics model only). layer: instead of the one of its body.
    """

    kind: str
    size: tuple[float, ...]
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quat: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)
    ends: tuple[float, ...] | None = None
    rgba: RGBA | None = None
    solid: bool = True
    layer: Layer | None = None


def geom_names(prefix: str, shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Names of the collision geoms that `add_shapes` gives to `shapes` in the physics model."""
    return tuple(f"{prefix}_g{i}" for i, shape in enumerate(shapes) if shape.solid)


def add_shapes(
    body: Any, prefix: str, shapes: tuple[Shape, ...], *, visual: bool, layer: Layer, **contact: Any
) -> None:
    """Add the shapes of one kind of model to an mjSpec body; `contact` sets friction, solref, ... of solid geoms.

    Geoms weigh nothing: every moving body states its inertia.
    """
    for i, shape in enumerate(shapes):
        if (shape.rgba is None) if visual else not shape.solid:
            continue
        size = [*shape.size, *([0.0] * (3 - len(shape.size)))]
        geom = body.add_geom(name=f"{prefix}_g{i}", type=GEOM_TYPES[shape.kind], size=size, density=0)
        if shape.ends is not None:
            geom.fromto = shape.ends
        else:
            geom.pos, geom.quat = shape.pos, shape.quat
        if visual:
            geom.contype, geom.conaffinity, geom.rgba = 0, 0, shape.rgba
            continue
        geom.contype, geom.conaffinity = (shape.layer or layer).value
        for key, value in contact.items():
            setattr(geom, key, value)
