"""The movable things: what they are made of, and where a gripper takes them.

All stand upright, weigh 60-120 g and have a grip 3.5-5 cm wide, or a thin rim. Frames: origin at the middle, z up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from embodied_rl.sim.tabletop.shapes import RGBA, Layer, Shape


@dataclass(frozen=True, slots=True)
class ObjectType:
    """A free body.

    mass: kg. inertia: principal moments, kg m^2. bottom, top: distances (m) of its lowest and highest point from the
    origin. radius: horizontal reach (m), to keep things apart. grip_height: of the grip site over the origin (m).
    rim: 0 to take it across its middle, else the distance (m) from the axis at which the fingers straddle the rim.
    """

    mass: float
    inertia: tuple[float, float, float]
    bottom: float
    top: float
    radius: float
    grip_height: float
    shapes: tuple[Shape, ...]
    rim: float = 0.0


_BLACK: RGBA = (0.10, 0.10, 0.12, 1)
_INSIDE: RGBA = (0.30, 0.30, 0.34, 1)
_RED: RGBA = (0.84, 0.13, 0.13, 1)
_CREAM: RGBA = (0.96, 0.92, 0.82, 1)
_STEEL: RGBA = (0.78, 0.79, 0.81, 1)
_WHITE: RGBA = (0.97, 0.97, 0.97, 1)
_BLUE: RGBA = (0.13, 0.33, 0.80, 1)
_GREEN: RGBA = (0.10, 0.55, 0.24, 1)
_ORANGE: RGBA = (0.95, 0.52, 0.10, 1)
_BROWN: RGBA = (0.42, 0.24, 0.12, 1)
_PURPLE: RGBA = (0.50, 0.20, 0.62, 1)
_YELLOW: RGBA = (0.98, 0.82, 0.16, 1)


def _cylinder_inertia(mass: float, radius: float, height: float) -> tuple[float, float, float]:
    side = mass * (3 * radius**2 + height**2) / 12
    return side, side, mass * radius**2 / 2


def _box_inertia(mass: float, x: float, y: float, z: float) -> tuple[float, float, float]:
    """Of half sizes x, y, z."""
    return mass * (y**2 + z**2) / 3, mass * (x**2 + z**2) / 3, mass * (x**2 + y**2) / 3


def _look(kind: str, size: tuple[float, ...], rgba: RGBA, z: float = 0.0) -> Shape:
    return Shape(kind, size, pos=(0, 0, z), rgba=rgba, solid=False)


def _upright(radius: float, half: float, rgba: RGBA, z: float = 0.0) -> tuple[Shape, ...]:
    """A cylinder to grasp around a box to stand on (see Layer)."""
    core, gap = 0.7 * radius, 0.0005
    return (
        Shape("cylinder", (radius, half - gap), pos=(0, 0, z + gap), layer=Layer.SHELL),
        Shape("box", (core, core, half), pos=(0, 0, z), layer=Layer.CORE),
        Shape("cylinder", (radius, half), pos=(0, 0, z), rgba=rgba, solid=False),
    )


def _can() -> ObjectType:
    shapes = (
        *_upright(0.024, 0.038, _RED),
        _look("cylinder", (0.0243, 0.012), _CREAM, 0.002),
        _look("cylinder", (0.0235, 0.0012), _STEEL, 0.0382),
    )
    return ObjectType(0.1, _cylinder_inertia(0.1, 0.024, 0.076), 0.038, 0.038, 0.034, 0.014, shapes)


def _milk() -> ObjectType:
    half = math.radians(45) / 2
    roof = Shape(
        "box",
        (0.0155, 0.0219, 0.0155),
        pos=(0, 0, 0.036),
        quat=(math.cos(half), 0, math.sin(half), 0),
        rgba=_BLUE,
        solid=False,
    )
    shapes = (
        Shape("box", (0.022, 0.022, 0.038), pos=(0, 0, -0.002), rgba=_WHITE),
        _look("box", (0.0223, 0.0223, 0.014), _BLUE, -0.018),
        roof,
        _look("box", (0.003, 0.0215, 0.006), _WHITE, 0.060),
    )
    return ObjectType(0.12, _box_inertia(0.12, 0.022, 0.022, 0.04), 0.04, 0.066, 0.034, 0.016, shapes)


def _bottle() -> ObjectType:
    shapes = (
        *_upright(0.022, 0.036, _GREEN, -0.008),
        Shape("cylinder", (0.010, 0.012), pos=(0, 0, 0.036), rgba=_GREEN, layer=Layer.SHELL),
        _look("cylinder", (0.0223, 0.014), _CREAM, -0.012),
        _look("ellipsoid", (0.022, 0.022, 0.012), _GREEN, 0.028),
        _look("cylinder", (0.0115, 0.005), _YELLOW, 0.046),
    )
    return ObjectType(0.1, _cylinder_inertia(0.1, 0.022, 0.09), 0.044, 0.051, 0.032, 0.016, shapes)


def _mug() -> ObjectType:
    handle = (0.0042,)
    shapes = (
        *_upright(0.0235, 0.032, _YELLOW),
        Shape("capsule", handle, ends=(0.022, 0, 0.020, 0.042, 0, 0.014), rgba=_YELLOW, solid=False),
        Shape("capsule", handle, ends=(0.042, 0, 0.014, 0.042, 0, -0.010), rgba=_YELLOW),
        Shape("capsule", handle, ends=(0.042, 0, -0.010, 0.022, 0, -0.018), rgba=_YELLOW, solid=False),
        _look("cylinder", (0.0205, 0.0005), _BROWN, 0.0321),
    )
    return ObjectType(0.1, _cylinder_inertia(0.1, 0.0235, 0.064), 0.032, 0.032, 0.046, 0.010, shapes)


def _cookies() -> ObjectType:
    shapes = (Shape("box", (0.034, 0.021, 0.017), rgba=_ORANGE), _look("box", (0.016, 0.0213, 0.0172), _BROWN, 0.0))
    return ObjectType(0.09, _box_inertia(0.09, 0.034, 0.021, 0.017), 0.017, 0.017, 0.042, 0.0, shapes)


def _tin() -> ObjectType:
    shapes = (
        *_upright(0.0245, 0.025, _PURPLE),
        _look("cylinder", (0.0255, 0.006), _STEEL, 0.0195),
        _look("sphere", (0.006,), _STEEL, 0.029),
    )
    return ObjectType(0.1, _cylinder_inertia(0.1, 0.0245, 0.05), 0.025, 0.031, 0.034, 0.005, shapes)


def _bowl() -> ObjectType:
    radius, thick, half_height = 0.041, 0.0028, 0.0165
    walls = []
    for i in range(8):
        angle = math.pi / 4 * i
        place = (radius * math.cos(angle), radius * math.sin(angle), 0.004)
        quat = (math.cos(angle / 2), 0.0, 0.0, math.sin(angle / 2))
        walls.append(Shape("box", (thick, 0.0182, half_height), pos=place, quat=quat, rgba=_BLACK))
    shapes = (
        Shape("box", (0.028, 0.028, 0.004), pos=(0, 0, -0.0165)),
        *walls,
        _look("cylinder", (0.040, 0.003), _INSIDE, -0.0095),
        _look("cylinder", (0.030, 0.004), _BLACK, -0.0165),
    )
    inertia = (6e-5, 6e-5, 1e-4)
    return ObjectType(0.08, inertia, 0.0205, 0.0205, 0.047, 0.011, shapes, rim=radius)


OBJECTS: dict[str, ObjectType] = {
    "can": _can(),
    "milk": _milk(),
    "bottle": _bottle(),
    "mug": _mug(),
    "cookie_box": _cookies(),
    "tea_tin": _tin(),
    "bowl": _bowl(),
}
"""By the type names that task files use."""
