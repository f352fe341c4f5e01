"""A manipulation task in LIBERO's format: what the engine steps, the renderer draws and the expert solves.

Robot names follow robosuite's Panda, so that one control kernel serves LIBERO's scenes and ours: joints
`robot0_joint1..7`, `gripper0_finger_joint1..2`; torque motors `robot0_torq_j1..7`; position actuators
`gripper0_gripper_finger_joint1..2`; site `gripper0_grip_site`; body `robot0_right_hand`; cameras `agentview`,
`robot0_eye_in_hand`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mujoco

from embodied_rl.types import Array


@dataclass(frozen=True, slots=True)
class On:
    """Object `body` rests on object `other`: in contact, not below it, less than 0.03 m apart sideways (LIBERO's)."""

    body: str
    other: str
    body_geoms: tuple[str, ...]
    other_geoms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnSite:
    """Object `body` lies over box site `site`; with `contact_geoms`, its geoms also touch those (LIBERO's `under`)."""

    body: str
    site: str
    body_geoms: tuple[str, ...] = ()
    contact_geoms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class In:
    """The origin of `body` is inside box site `site` (LIBERO's `in_box`)."""

    body: str
    site: str


@dataclass(frozen=True, slots=True)
class JointRange:
    """A hinge or slide state: Open, Close, TurnOn, TurnOff.

    True when `joint` is above `threshold` (`above`) or below it. `any_of` lists further joints of the fixture:
    with `need_all` every joint must satisfy it, else one is enough.
    """

    joints: tuple[str, ...]
    threshold: float
    above: bool
    need_all: bool
    inclusive: bool = False


@dataclass(frozen=True, slots=True)
class Up:
    """The origin of `body` is at least 1 m high (LIBERO's)."""

    body: str


@dataclass(frozen=True, slots=True)
class Stack:
    """Object `body` stands in object `other`: in contact, above its origin, within `half_extents` (m) of it (LIBERO's).

    The box is aligned with the world and reaches 1 cm lower.
    """

    body: str
    other: str
    body_geoms: tuple[str, ...]
    other_geoms: tuple[str, ...]
    half_extents: tuple[float, float, float]


Predicate = On | OnSite | In | JointRange | Up | Stack


@dataclass(frozen=True)
class Task:
    """One task. Physics and visual models agree in bodies, joints, sites, actuators and cameras; geoms may differ.

    name: 'suite/short_name'. horizon: control steps. goal: conjunction. init_states: float64 [S, 1 + nq + nv]
    (time, qpos, qvel); rows in `train_states` are for training, rows in `heldout_states` for evaluation; the two never
    overlap. The model builders are called once a process and cached by their caller.
    """

    name: str
    suite: str
    instruction: str
    horizon: int
    goal: tuple[Predicate, ...]
    init_states: Array
    train_states: range
    heldout_states: range
    build_physics: Callable[[], mujoco.MjModel]
    build_visual: Callable[[], mujoco.MjModel]
