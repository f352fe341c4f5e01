"""From a parsed task file to MuJoCo models: table, robot, fixtures, objects, cameras, light."""

from __future__ import annotations

import math
from typing import Any

import mujoco

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.bddl import Problem, Region
from embodied_rl.sim.tabletop.fixtures import FIXTURES, FixtureType
from embodied_rl.sim.tabletop.objects import OBJECTS, ObjectType
from embodied_rl.sim.tabletop.panda import add_panda
from embodied_rl.sim.tabletop.shapes import Layer, add_shapes

TABLE = "table"
TABLE_HEIGHT = 0.9
"""Of the table top over the floor (m); x, y of every region are relative to the table's middle, the world origin."""
ROBOT_BASE = (-0.66, 0.0, TABLE_HEIGHT + 0.012)

_CAMERA_AT = (0.60, 0.0, TABLE_HEIGHT + 0.56)
_CAMERA_LOOKS_AT = (-0.12, 0.0, TABLE_HEIGHT + 0.075)
_CAMERA_FOVY = 40.0


def object_type(problem: Problem, name: str) -> ObjectType:
    """The catalogue entry of the object called `name`."""
    return OBJECTS[_known(problem.objects[name], OBJECTS, "object", problem)]


def fixture_type(problem: Problem, name: str) -> FixtureType:
    """The catalogue entry of the fixture called `name`."""
    return FIXTURES[_known(problem.fixtures[name], FIXTURES, "fixture", problem)]


def _known(kind: str, catalogue: dict[str, Any], what: str, problem: Problem) -> str:
    if kind not in catalogue:
        raise UserError(f"{problem.name}: unknown {what} type '{kind}'.{suggest(kind, catalogue)}")
    return kind


def place_of(problem: Problem, name: str) -> Region:
    """The region where :init puts `name`."""
    for fact in problem.init:
        if fact.predicate in ("on", "in") and fact.args[0] == name and fact.args[1] in problem.regions:
            return problem.regions[fact.args[1]]
    raise UserError(f"{problem.name}: :init puts '{name}' in no region; add (On {name} <region>)")


def fixture_pose(problem: Problem, name: str) -> tuple[float, float, float]:
    """x, y (m) and yaw (rad) of a fixture: the middle of its region."""
    region = place_of(problem, name)
    if region.target != TABLE or not region.ranges:
        raise UserError(f"{problem.name}: fixture '{name}' needs a region of the table with (:ranges ...)")
    x0, y0, x1, y1 = region.ranges[0]
    yaw = sum(region.yaw[0]) / 2 if region.yaw else 0.0
    return (x0 + x1) / 2, (y0 + y1) / 2, yaw


def build_model(problem: Problem, *, visual: bool) -> mujoco.MjModel:
    """Compile the physics model, or the visual one; both have the same bodies, joints, sites, actuators and cameras."""
    spec: Any = mujoco.MjSpec()
    spec.modelname = problem.name
    _set_options(spec)
    _add_surroundings(spec, visual=visual)
    add_panda(spec, ROBOT_BASE, visual=visual)
    for name in problem.fixtures:
        if name != TABLE:
            _add_fixture(spec, problem, name, visual=visual)
    for name in problem.objects:
        _add_object(spec, name, object_type(problem, name), visual=visual)
    return spec.compile()


def _set_options(spec: Any) -> None:
    spec.compiler.degree = False
    option = spec.option
    option.timestep = 0.002
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    option.impratio = 10.0  # holds a grasp against slow slip


def _add_surroundings(spec: Any, *, visual: bool) -> None:
    world = spec.worldbody
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    if visual:
        world.add_light(
            name="sun",
            pos=(0.4, -0.5, 2.6),
            dir=(-0.25, 0.35, -1.0),
            diffuse=(0.62, 0.62, 0.60),
            specular=(0.05, 0.05, 0.05),
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
            castshadow=False,
        )
        head = spec.visual.headlight
        head.ambient, head.diffuse, head.specular = (0.34, 0.34, 0.35), (0.30, 0.30, 0.30), (0, 0, 0)
        world.add_geom(name="floor", type=plane, size=(0, 0, 1), rgba=(0.40, 0.43, 0.47, 1), contype=0, conaffinity=0)
        world.add_geom(
            name="wall",
            type=plane,
            pos=(-1.8, 0, 0),
            quat=(math.sqrt(0.5), 0, math.sqrt(0.5), 0),
            size=(0, 0, 1),
            rgba=(0.58, 0.64, 0.70, 1),
            contype=0,
            conaffinity=0,
        )
        world.add_geom(
            name="table_top",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=(-0.18, 0, TABLE_HEIGHT - 0.02),
            size=(0.66, 0.6, 0.02),
            rgba=(0.80, 0.75, 0.67, 1),
            contype=0,
            conaffinity=0,
        )
    else:
        # an endless table is the cheapest thing to collide with
        world.add_geom(
            name="table_top",
            type=plane,
            pos=(0, 0, TABLE_HEIGHT),
            size=(1, 1, 0.1),
            contype=Layer.TABLE.value[0],
            conaffinity=0,
            friction=(1.0, 0.005, 0.0001),
        )
    camera = world.add_camera(name="agentview", pos=_CAMERA_AT, fovy=_CAMERA_FOVY)
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = _look_at(_CAMERA_AT, _CAMERA_LOOKS_AT)


def _look_at(eye: tuple[float, float, float], target: tuple[float, float, float]) -> tuple[float, ...]:
    """Right and up axes of a camera at `eye` that looks at `target`."""
    fx, fy, fz = (t - e for t, e in zip(target, eye, strict=True))
    norm = math.sqrt(fx * fx + fy * fy + fz * fz)
    fx, fy, fz = fx / norm, fy / norm, fz / norm
    flat = math.hypot(fx, fy)
    rx, ry = fy / flat, -fx / flat
    return rx, ry, 0.0, ry * fz, -rx * fz, rx * fy - ry * fx


def _add_fixture(spec: Any, problem: Problem, name: str, *, visual: bool) -> None:
    kind = fixture_type(problem, name)
    x, y, yaw = fixture_pose(problem, name)
    quat = (math.cos(yaw / 2), 0, 0, math.sin(yaw / 2))
    body = spec.worldbody.add_body(name=f"{name}_main", pos=(x, y, TABLE_HEIGHT), quat=quat)
    add_shapes(body, name, kind.shapes, visual=visual, layer=Layer.FIXTURE)
    moving: Any = None
    if kind.part is not None:
        part = kind.part
        moving = body.add_body(name=f"{name}_{part.name}", pos=part.pos)
        moving.explicitinertial, moving.mass, moving.inertia = True, part.mass, part.inertia
        moving.ipos = (0, 0, 0.01)
        joint = mujoco.mjtJoint.mjJNT_HINGE if part.hinge else mujoco.mjtJoint.mjJNT_SLIDE
        moving.add_joint(
            name=f"{name}_{part.name}_joint",
            type=joint,
            axis=part.axis,
            range=part.limits,
            limited=mujoco.mjtLimited.mjLIMITED_TRUE,
            damping=[part.damping, 0, 0],
            frictionloss=part.friction,
        )
        add_shapes(moving, f"{name}_{part.name}", part.shapes, visual=visual, layer=Layer.FIXTURE)
        moving.add_site(name=f"{name}_{part.name}_tip", pos=part.tip, rgba=(0, 0, 0, 0))
    for region in kind.regions:
        owner = moving if region.on_part else body
        owner.add_site(
            name=f"{name}_{region.name}",
            pos=region.pos,
            size=region.size,
            type=mujoco.mjtGeom.mjGEOM_BOX,
            rgba=(0, 0, 0, 0),
        )


def _add_object(spec: Any, name: str, kind: ObjectType, *, visual: bool) -> None:
    body = spec.worldbody.add_body(name=f"{name}_main", pos=(0, 0, TABLE_HEIGHT + kind.bottom))
    body.explicitinertial, body.mass, body.ipos, body.inertia = True, kind.mass, (0, 0, 0), kind.inertia
    body.add_freejoint(name=f"{name}_joint0")
    add_shapes(body, name, kind.shapes, visual=visual, layer=Layer.OBJECT, friction=(1.0, 0.005, 0.0001))
