"""A Franka Panda made of primitives: true kinematics, joint limits, torque limits and link inertias.

Kinematics: Franka Emika's published Denavit-Hartenberg parameters (Craig's convention). Link masses, centres of mass
and inertias: C. Gaz et al., "Dynamic identification of the Franka Emika Panda robot with retrieval of feasible
parameters using penalty-based optimization", RA-L 2019. Names follow robosuite (see sim/mujoco/task.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mujoco

from embodied_rl.sim.tabletop.shapes import RGBA, Layer, Shape, add_shapes

HOME = (0.0, -0.161, 0.0, -2.445, 0.0, 2.227, 0.785398)
"""Joint angles (rad) at the start of an episode: LIBERO's pose, gripper down."""
FINGER_HOME = (0.02, -0.02)
"""Finger joints (m) at the start: the set point of a gripper command integrated to 0."""
FLANGE = 0.107
FINGER_BASE = 0.0584
GRIP_DEPTH = 0.1034
"""Distances (m) along the hand's z axis: link 7 to hand, hand to finger root, hand to grip site."""
FINGER_LENGTH = 0.0538

_WHITE: RGBA = (0.93, 0.94, 0.95, 1.0)
_GREY: RGBA = (0.36, 0.38, 0.43, 1.0)
_DARK: RGBA = (0.23, 0.24, 0.27, 1.0)
_ACCENT: RGBA = (0.66, 0.70, 0.74, 1.0)
_UP = math.sqrt(0.5)


@dataclass(frozen=True, slots=True)
class Link:
    """Pose in the parent link, joint range (rad), torque limit (N m), inertial (kg, m, kg m^2), and looks.

    inertia: xx, yy, zz, xy, xz, yz about the centre of mass.
    """

    pos: tuple[float, float, float]
    turn: float
    limits: tuple[float, float]
    torque: float
    mass: float
    com: tuple[float, float, float]
    inertia: tuple[float, float, float, float, float, float]
    looks: tuple[Shape, ...]


def _bar(radius: float, *ends: float, rgba: RGBA = _WHITE, kind: str = "capsule") -> Shape:
    return Shape(kind, (radius,), ends=ends, rgba=rgba, solid=False)


LINKS = (
    Link(
        (0, 0, 0.333),
        0,
        (-2.8973, 2.8973),
        87,
        4.970684,
        (0.003875, 0.002081, -0.04762),
        (0.70337, 0.70661, 0.009117, -0.000139, 0.006772, 0.019169),
        (_bar(0.062, 0, 0, -0.19, 0, 0, -0.02), _bar(0.063, 0, -0.075, 0, 0, 0.075, 0)),
    ),
    Link(
        (0, 0, 0),
        -1,
        (-1.7628, 1.7628),
        87,
        0.646926,
        (-0.003141, -0.02872, 0.003495),
        (0.007962, 0.02811, 0.025995, -0.003925, 0.010254, 0.000704),
        (
            _bar(0.058, 0, -0.04, 0, 0, -0.19, 0),
            _bar(0.0635, 0, 0, 0.045, 0, 0, 0.082, rgba=_ACCENT, kind="cylinder"),
            _bar(0.0635, 0, 0, -0.082, 0, 0, -0.045, rgba=_ACCENT, kind="cylinder"),
        ),
    ),
    Link(
        (0, -0.316, 0),
        1,
        (-2.8973, 2.8973),
        87,
        3.228604,
        (0.027518, 0.039252, -0.066502),
        (0.037242, 0.036155, 0.01083, -0.004761, -0.011396, -0.012805),
        (
            _bar(0.058, 0, 0, -0.12, 0.02, 0, -0.02),
            _bar(0.055, 0.0825, -0.062, 0, 0.0825, 0.062, 0),
            _bar(0.05, 0.02, 0, -0.02, 0.0825, 0, 0),
        ),
    ),
    Link(
        (0.0825, 0, 0),
        1,
        (-3.0718, -0.0698),
        87,
        3.587895,
        (-0.05317, 0.104419, 0.027454),
        (0.025853, 0.019552, 0.028323, 0.007796, -0.001332, 0.008641),
        (
            _bar(0.052, -0.02, 0.02, 0, -0.0825, 0.10, 0),
            _bar(0.055, -0.0825, 0.10, 0, -0.0825, 0.16, 0),
            _bar(0.056, 0, 0, -0.07, 0, 0, 0.07, rgba=_ACCENT, kind="cylinder"),
        ),
    ),
    Link(
        (-0.0825, 0.384, 0),
        -1,
        (-2.8973, 2.8973),
        87,
        1.225946,
        (-0.011953, 0.041065, -0.038437),
        (0.035549, 0.029474, 0.008627, -0.002117, -0.004037, 0.000229),
        (
            _bar(0.05, 0, 0, -0.22, 0, 0.02, -0.08),
            _bar(0.052, 0, 0.045, -0.06, 0, 0.045, 0),
            _bar(0.05, 0, -0.03, 0, 0, 0.04, 0),
        ),
    ),
    Link(
        (0, 0, 0),
        1,
        (-0.0175, 3.7525),
        12,
        1.666555,
        (0.060149, -0.014117, -0.010517),
        (0.001964, 0.004354, 0.005433, 0.000109, -0.001158, 0.000341),
        (_bar(0.047, 0, 0, 0, 0.088, 0, 0), _bar(0.051, 0, 0, -0.06, 0, 0, 0.06, rgba=_ACCENT, kind="cylinder")),
    ),
    Link(
        (0.088, 0, 0),
        1,
        (-2.8973, 2.8973),
        12,
        0.735522,
        (0.010517, -0.004252, 0.061597),
        (0.012516, 0.010027, 0.004815, -0.000428, -0.001196, -0.000741),
        (_bar(0.046, 0, 0, -0.05, 0, 0, 0.07), _bar(0.04, 0, 0, 0.06, 0, 0, 0.107, rgba=_DARK, kind="cylinder")),
    ),
)

_BASE_LOOKS = (
    Shape("box", (0.12, 0.10, 0.012), pos=(-0.04, 0, 0.012), rgba=_DARK, solid=False),
    Shape("cylinder", (0.078, 0.065), pos=(0, 0, 0.08), rgba=_WHITE, solid=False),
    _bar(0.06, -0.10, 0, 0.06, 0, 0, 0.08),
)
HAND = (
    Shape("box", (0.028, 0.085, 0.030), pos=(0, 0, 0.036), rgba=_GREY),
    Shape("box", (0.024, 0.080, 0.004), pos=(0, 0, 0.0625), rgba=_DARK, solid=False),
)
_FINGER_HALF = (0.0105, 0.006, 0.5 * FINGER_LENGTH)


def _finger_shapes(side: float) -> tuple[Shape, ...]:
    """One solid box a finger: its inner face is the plane y = 0 of the finger frame."""
    x, y, z = _FINGER_HALF
    return (
        Shape("box", _FINGER_HALF, pos=(0, side * y, z)),
        Shape("box", (x * 0.9, y * 1.2, 0.6 * z), pos=(0, side * (y * 1.2 + 0.001), 0.6 * z), rgba=_DARK, solid=False),
        Shape("box", (x, y, 0.45 * z), pos=(0, side * y, 1.55 * z), rgba=_ACCENT, solid=False),
    )


def add_panda(spec: Any, base: tuple[float, float, float], *, visual: bool) -> None:
    """Add the robot at `base` (m, world), its actuators and its wrist camera to `spec`."""
    body = spec.worldbody.add_body(name="robot0_link0", pos=base)
    add_shapes(body, "robot0_link0", _BASE_LOOKS, visual=visual, layer=Layer.GRIPPER)
    for number, link in enumerate(LINKS, start=1):
        quat = (_UP, link.turn * _UP, 0, 0) if link.turn else (1, 0, 0, 0)
        body = body.add_body(name=f"robot0_link{number}", pos=link.pos, quat=quat)
        body.explicitinertial, body.mass, body.ipos, body.fullinertia = True, link.mass, link.com, link.inertia
        body.add_joint(
            name=f"robot0_joint{number}",
            type=mujoco.mjtJoint.mjJNT_HINGE,
            axis=(0, 0, 1),
            range=link.limits,
            limited=mujoco.mjtLimited.mjLIMITED_TRUE,
            damping=[0.1, 0, 0],
            armature=0.1,
        )
        add_shapes(body, f"robot0_link{number}", link.looks, visual=visual, layer=Layer.GRIPPER)
        motor = spec.add_actuator(name=f"robot0_torq_j{number}", target=f"robot0_joint{number}")
        motor.trntype = mujoco.mjtTrn.mjTRN_JOINT
        motor.set_to_motor()
        motor.ctrllimited, motor.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, (-link.torque, link.torque)
    _add_hand(spec, body, visual=visual)


def _add_hand(spec: Any, wrist: Any, *, visual: bool) -> None:
    half = math.radians(-45) / 2
    hand = wrist.add_body(name="robot0_right_hand", pos=(0, 0, FLANGE), quat=(math.cos(half), 0, 0, math.sin(half)))
    hand.explicitinertial, hand.mass, hand.ipos, hand.inertia = True, 0.73, (-0.01, 0, 0.03), (0.001, 0.0025, 0.0017)
    add_shapes(hand, "gripper0_hand", HAND, visual=visual, layer=Layer.GRIPPER)
    hand.add_site(name="gripper0_grip_site", pos=(0, 0, GRIP_DEPTH), rgba=(0, 0, 0, 0))
    _add_wrist_camera(hand)
    for number, (finger, side) in enumerate((("left", 1.0), ("right", -1.0)), start=1):
        joint = f"gripper0_finger_joint{number}"
        travel = (0.0, 0.04) if side > 0 else (-0.04, 0.0)
        body = hand.add_body(name=f"gripper0_{finger}finger", pos=(0, 0, FINGER_BASE))
        body.explicitinertial, body.mass, body.ipos, body.inertia = True, 0.1, (0, 0, 0.027), (3e-5, 3e-5, 5e-6)
        body.add_joint(
            name=joint,
            type=mujoco.mjtJoint.mjJNT_SLIDE,
            axis=(0, 1, 0),
            range=travel,
            limited=mujoco.mjtLimited.mjLIMITED_TRUE,
            damping=[30, 0, 0],
            armature=0.1,
        )
        add_shapes(
            body,
            f"gripper0_{finger}finger",
            _finger_shapes(side),
            visual=visual,
            layer=Layer.GRIPPER,
            condim=4,
            priority=1,
            friction=(2.0, 0.02, 0.0001),
            solref=(0.01, 1),
            solimp=(0.98, 0.99, 0.001, 0.5, 2),
        )
        drive = spec.add_actuator(name=f"gripper0_gripper_finger_joint{number}", target=joint)
        drive.trntype = mujoco.mjtTrn.mjTRN_JOINT
        drive.set_to_position(kp=1000)
        drive.ctrllimited, drive.ctrlrange = mujoco.mjtLimited.mjLIMITED_TRUE, travel
        drive.forcelimited, drive.forcerange = mujoco.mjtLimited.mjLIMITED_TRUE, (-20, 20)


def _add_wrist_camera(hand: Any) -> None:
    """Before the palm, tilted towards the finger tips."""
    tilt = math.radians(15)
    # it looks along (-sin, 0, cos) of the hand frame
    camera = hand.add_camera(name="robot0_eye_in_hand", pos=(0.07, 0, 0.02), fovy=80)
    camera.alt.type = mujoco.mjtOrientation.mjORIENTATION_XYAXES
    camera.alt.xyaxes = (0, 1, 0, math.cos(tilt), 0, math.sin(tilt))


def joint_names() -> tuple[str, ...]:
    """The seven arm joints."""
    return tuple(f"robot0_joint{i}" for i in range(1, 8))
