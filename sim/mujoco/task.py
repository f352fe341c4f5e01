"""A manipulation task in LIBERO's format: MuJoCo models, a goal, and what is left over from an official reset.

Robot names follow robosuite's Panda, so that one control kernel serves LIBERO's scenes and ours: joints
`robot0_joint1..7`, `gripper0_finger_joint1..2`; torque motors `robot0_torq_j1..7`; position actuators
`gripper0_gripper_finger_joint1..2`; site `gripper0_grip_site`; body `robot0_right_hand`; cameras `agentview`,
`robot0_eye_in_hand`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mujoco

from embodied_rl.sim.eras import CURRENT, Era
from embodied_rl.sim.mujoco.robot import PANDA, RobotSpec
from embodied_rl.sim.task import TaskSpec
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


@dataclass(frozen=True, slots=True)
class Touch:
    """A contact of one of `geoms` with one of `others`, in MuJoCo's order of the two: boxes come before meshes, and of
    one type the first in the model."""

    geoms: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a staged reward: it holds while all of `touching` and none of `apart` are contacts."""

    touching: tuple[Touch, ...]
    apart: tuple[Touch, ...] = ()


@dataclass(frozen=True, slots=True)
class Indicator:
    """A site of the visual model that is drawn only while `when` holds (a stove's burner)."""

    site: str
    when: JointRange


@dataclass(frozen=True, kw_only=True)
class MujocoTask(TaskSpec):
    """A task of two MuJoCo models, which agree in bodies, joints, sites, actuators and cameras; geoms may differ.

    Args:
        init_states: float64 [S, 1 + nq + nv]: time, qpos, qvel.
        goal: predicates that must all hold.
        stages: in place of a goal, the steps of a staged reward, which is the number of the highest one that holds; the
            last one is success.
        build_physics, build_visual: make the models; callers keep what they return.
        start: what LIBERO's env.reset leaves behind and its set_init_state keeps, by the golden data's names (see
            `Env.reset`). None: an episode starts at rest.
        indicators: sites that are drawn only while a joint is in a range.
        era: whose contacts and texture colours the models have that are built.
        robot: what acts in them; the module's text says how LIBERO's is named.
    """

    goal: tuple[Predicate, ...]
    build_physics: Callable[[], mujoco.MjModel]
    build_visual: Callable[[], mujoco.MjModel]
    start: Mapping[str, Array] | None = None
    indicators: tuple[Indicator, ...] = ()
    era: Era = CURRENT
    robot: RobotSpec = PANDA
    stages: tuple[Stage, ...] = ()

    @property
    def is_official(self) -> bool:
        """Whether official runs exist that an episode should agree with bit for bit."""
        return self.start is not None
