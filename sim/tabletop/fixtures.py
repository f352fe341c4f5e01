"""The things that stay where they are: basket, plate, cabinet with a drawer, stove with a knob, and landmarks.

Frames: origin on the table under the middle, z up. What moves (drawer, knob) is a jointed part.
"""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.sim.tabletop.shapes import RGBA, Shape


@dataclass(frozen=True, slots=True)
class BoxRegion:
    """A box site `<fixture>_<name>` of half sizes `size` at `pos`, on the fixture or on its moving part."""

    name: str
    pos: tuple[float, float, float]
    size: tuple[float, float, float]
    on_part: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A moving part on one joint.

    limits, damping, friction: of the joint, in m or rad and N or N m. tip: where a finger pushes or pulls it (part
    frame), site `<fixture>_<name>_tip`.
    """

    name: str
    hinge: bool
    axis: tuple[float, float, float]
    limits: tuple[float, float]
    pos: tuple[float, float, float]
    mass: float
    inertia: tuple[float, float, float]
    damping: float
    friction: float
    tip: tuple[float, float, float]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class FixtureType:
    """A body fixed to the table.

    radius, height: how far it reaches sideways and up (m). surface: height (m) at which a thing put on it stands.
    on_above, off_below: joint values beyond which its part counts as open / on, or as closed / off. part_active: the
    joint value that an init fact such as (Open ...) sets.
    """

    radius: float
    height: float
    shapes: tuple[Shape, ...]
    regions: tuple[BoxRegion, ...] = ()
    part: Part | None = None
    on_above: float = 0.0
    off_below: float = 0.0
    part_active: float = 0.0
    surface: float = 0.0


_WICKER: RGBA = (0.66, 0.46, 0.25, 1)
_WICKER_DARK: RGBA = (0.50, 0.33, 0.17, 1)
_PORCELAIN: RGBA = (0.95, 0.96, 0.98, 1)
_RING: RGBA = (0.55, 0.66, 0.80, 1)
_WOOD: RGBA = (0.55, 0.34, 0.18, 1)
_WOOD_LIGHT: RGBA = (0.72, 0.50, 0.30, 1)
_METAL: RGBA = (0.80, 0.81, 0.83, 1)
_ENAMEL: RGBA = (0.22, 0.23, 0.26, 1)
_BURNER: RGBA = (0.75, 0.22, 0.10, 1)
_GLAZE: RGBA = (0.35, 0.62, 0.58, 1)


def _basket() -> FixtureType:
    inner, wall, height = 0.085, 0.005, 0.028
    shapes: list[Shape] = [Shape("box", (inner, inner, 0.001), pos=(0, 0, 0.001), rgba=_WICKER_DARK, solid=False)]
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        at = inner + wall
        size = (wall if x else inner + 2 * wall, wall if y else inner + 2 * wall, height)
        shapes.append(Shape("box", size, pos=(x * at, y * at, height), rgba=_WICKER))
        rim = (size[0] + 0.002, size[1] + 0.002, 0.004)
        shapes.append(Shape("box", rim, pos=(x * at, y * at, 2 * height), rgba=_WICKER_DARK, solid=False))
    region = BoxRegion("contain_region", (0, 0, height), (inner, inner, height))
    return FixtureType(0.13, 0.06, tuple(shapes), (region,))


def _plate() -> FixtureType:
    shapes = (
        Shape("box", (0.05, 0.05, 0.005), pos=(0, 0, 0.005)),
        Shape("cylinder", (0.045, 0.003), pos=(0, 0, 0.003), rgba=_PORCELAIN, solid=False),
        Shape("cylinder", (0.076, 0.003), pos=(0, 0, 0.0072), rgba=_RING, solid=False),
        Shape("cylinder", (0.070, 0.003), pos=(0, 0, 0.0078), rgba=_PORCELAIN, solid=False),
        Shape("cylinder", (0.046, 0.003), pos=(0, 0, 0.0083), rgba=_RING, solid=False),
        Shape("cylinder", (0.043, 0.003), pos=(0, 0, 0.0087), rgba=_PORCELAIN, solid=False),
    )
    return FixtureType(0.08, 0.01, shapes, surface=0.010)


_CABINET_HALF = (0.10, 0.085, 0.0625)
_SHELF = 0.054


def _cabinet() -> FixtureType:
    """A cabinet whose upper drawer opens along +y; the lower drawer is a fixed front."""
    x, y, z = _CABINET_HALF
    t, floor = 0.006, _SHELF
    shapes = (
        Shape("box", (x, y, t), pos=(0, 0, 2 * z - t), rgba=_WOOD),
        Shape("box", (t, y, z - t), pos=(x - t, 0, z - t), rgba=_WOOD),
        Shape("box", (t, y, z - t), pos=(t - x, 0, z - t), rgba=_WOOD),
        Shape("box", (x - 2 * t, t, z - t), pos=(0, t - y, z - t), rgba=_WOOD),
        Shape("box", (x - 2 * t, y - 2 * t, 0.5 * floor), pos=(0, 0, 0.5 * floor), rgba=_WOOD),
        Shape("box", (x - 0.008, 0.004, 0.022), pos=(0, y + 0.002, 0.028), rgba=_WOOD_LIGHT, solid=False),
        Shape("sphere", (0.008,), pos=(0, y + 0.010, 0.028), rgba=_METAL, solid=False),
    )
    regions = (
        BoxRegion("top_side", (0, 0, 2 * z), (x, y, 0.003)),
        BoxRegion("drawer_region", (0, 0.014, 0.028), (0.080, 0.060, 0.030), on_part=True),
    )
    return FixtureType(0.14, 0.125, shapes, regions, _drawer(), on_above=0.10, off_below=0.012, part_active=0.13)


def _drawer() -> Part:
    """Frame: middle of the drawer, on the shelf inside the cabinet."""
    w, d, h, t = 0.084, 0.072, 0.018, 0.004
    front = d + 0.009
    bar = front + 0.052
    shapes = (
        Shape("box", (w, d, 0.003), pos=(0, 0, 0.003), rgba=_WOOD_LIGHT),
        Shape("box", (t, d, h), pos=(w - t, 0, h), rgba=_WOOD_LIGHT),
        Shape("box", (t, d, h), pos=(t - w, 0, h), rgba=_WOOD_LIGHT),
        Shape("box", (w, t, h), pos=(0, t - d, h), rgba=_WOOD_LIGHT),
        Shape("box", (0.092, 0.005, 0.027), pos=(0, front, 0.031), rgba=_WOOD_LIGHT),
        Shape("capsule", (0.0055,), ends=(-0.045, bar, 0.046, 0.045, bar, 0.046), rgba=_METAL),
        Shape("capsule", (0.0045,), ends=(-0.045, front, 0.046, -0.045, bar, 0.046), rgba=_METAL),
        Shape("capsule", (0.0045,), ends=(0.045, front, 0.046, 0.045, bar, 0.046), rgba=_METAL),
    )
    return Part(
        "drawer",
        False,
        (0, 1, 0),
        (0.0, 0.135),
        (0, 0, _SHELF + 0.002),
        0.4,
        (2e-3, 2e-3, 3e-3),
        6.0,
        0.6,
        (0, bar, 0.046),
        shapes,
    )


def _stove() -> FixtureType:
    """A flat stove; its knob is a lever that points to -y when off and is turned towards +x."""
    shapes = (
        Shape("box", (0.075, 0.105, 0.012), pos=(0, 0, 0.012), rgba=_ENAMEL),
        Shape("box", (0.078, 0.108, 0.004), pos=(0, 0, 0.004), rgba=_METAL, solid=False),
        Shape("cylinder", (0.058, 0.0012), pos=(0, 0.03, 0.0245), rgba=_METAL, solid=False),
        Shape("cylinder", (0.052, 0.0012), pos=(0, 0.03, 0.0252), rgba=_BURNER, solid=False),
        Shape("cylinder", (0.036, 0.0012), pos=(0, 0.03, 0.0257), rgba=_ENAMEL, solid=False),
        Shape("cylinder", (0.030, 0.0012), pos=(0, 0.03, 0.0262), rgba=_BURNER, solid=False),
        Shape("cylinder", (0.014, 0.0012), pos=(0, 0.03, 0.0267), rgba=_ENAMEL, solid=False),
    )
    regions = (BoxRegion("cook_region", (0, 0.03, 0.024), (0.045, 0.045, 0.003)),)
    knob = Part(
        "knob",
        True,
        (0, 0, 1),
        (0.0, 1.3),
        (0, -0.078, 0.024),
        0.05,
        (3e-5, 3e-5, 3e-5),
        0.02,
        0.02,
        (0, -0.045, 0.014),
        (
            Shape("cylinder", (0.018, 0.008), pos=(0, 0, 0.008), rgba=_METAL, solid=False),
            Shape("box", (0.006, 0.030, 0.009), pos=(0, -0.028, 0.017), rgba=_PORCELAIN),
            Shape("box", (0.0062, 0.006, 0.0092), pos=(0, -0.053, 0.0172), rgba=_BURNER, solid=False),
        ),
    )
    return FixtureType(0.13, 0.05, shapes, regions, knob, on_above=0.6, off_below=0.15, part_active=0.9)


def _ramekin() -> FixtureType:
    shapes = (
        Shape("cylinder", (0.032, 0.016), pos=(0, 0, 0.016), rgba=_GLAZE),
        Shape("cylinder", (0.027, 0.0006), pos=(0, 0, 0.0322), rgba=(0.93, 0.86, 0.62, 1), solid=False),
    )
    return FixtureType(0.035, 0.033, shapes)


def _tray() -> FixtureType:
    """A flat box on which a bowl may stand."""
    shapes = (
        Shape("box", (0.05, 0.05, 0.012), pos=(0, 0, 0.012), rgba=(0.86, 0.30, 0.22, 1)),
        Shape("box", (0.035, 0.0503, 0.0122), pos=(0, 0, 0.012), rgba=(0.96, 0.80, 0.42, 1), solid=False),
    )
    return FixtureType(0.07, 0.024, shapes, (BoxRegion("top_side", (0, 0, 0.024), (0.05, 0.05, 0.003)),))


FIXTURES: dict[str, FixtureType] = {
    "basket": _basket(),
    "plate": _plate(),
    "cabinet": _cabinet(),
    "stove": _stove(),
    "ramekin": _ramekin(),
    "box": _tray(),
}
"""By the type names that task files use; `table` is part of every scene."""
