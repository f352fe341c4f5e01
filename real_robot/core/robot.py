"""An arm's YAML: names, limits, kinematics, workspace and watchdog, checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.real_robot.core.gate import SafetyGate
from embodied_rl.real_robot.core.kinematics import Chain, Origin
from embodied_rl.real_robot.core.limits import AxisLimits
from embodied_rl.real_robot.core.motion import Motion
from embodied_rl.real_robot.core.watchdog import WatchdogLimits
from embodied_rl.real_robot.core.yaml_reader import Band, Section, read_yaml

ROBOTS = Path(__file__).parents[1] / "robots"
_MOST_STOP_TICKS = 2000

# What is plausible: every shipped file lies within, a slip of the unit (degrees, mm, ms) beyond.
_ANGLE, _TURN, _LENGTH, _TOOL, _DIRECTION = (-12.6, 12.6), (-6.2832, 6.2832), (-2.0, 2.0), (-1.0, 1.0), (-1.0, 1.0)
_RATE, _MARGIN, _SHARE = (10.0, 1000.0), (-inf, 0.5), (0.01, inf)
_FIGURES = {"velocity": (0.05, 10.0), "acceleration": (0.1, 50.0), "jerk": (1.0, 20_000.0)}
_RAMPS = {"acceleration": (0.01, 5.0), "jerk": (0.001, 1.0)}
"""Time in which an axis reaches its full velocity, and its full acceleration, s."""
_WIDTH = (-0.01, 0.3)
_GRIPPER_FIGURES = {"velocity": (0.005, 1.0), "acceleration": (0.05, 50.0), "jerk": (0.5, 5000.0)}
_WATCHDOG = {
    "camera_age_s": ("s", (0.02, 1.0)),
    "joint_state_age_s": ("s", (0.002, 0.25)),
    "policy_silence_s": ("s", (0.02, 2.0)),
    "tick_jitter_s": ("s", (0.0005, 0.2)),
    "tracking_error": ("rad", (0.01, 0.5)),
}


@dataclass(frozen=True)
class Workspace:
    """A box in the base frame that the tool's point must not leave.

    Args:
        chain: The arm's kinematics.
        lower: Smallest x, y, z, m.
        upper: Largest x, y, z, m.
    """

    chain: Chain
    lower: np.ndarray
    upper: np.ndarray

    def inside(self, angles: np.ndarray) -> np.ndarray:
        """Whether the tool is in the box, a micrometre from its walls at least: angles [..., n] -> bool [...]."""
        position = self.chain.position(angles)
        return np.all((position >= self.lower + 1e-6) & (position <= self.upper - 1e-6), axis=-1)


@dataclass(frozen=True)
class Robot:
    """All that the core must know of an arm.

    Attributes:
        name: For people.
        base_frame: The frame in which poses and the workspace are given.
        tool_frame: The frame at the tool's point.
        rate_hz: Set points per second.
        limits: What commands may use: the maker's figures after margin and scaling.
        home: Joint angles [n] from which episodes start, rad.
        chain: Forward kinematics from `base_frame` to `tool_frame`.
        workspace: Where the tool may be.
        gripper: Limits of the gripper's one axis; None for an arm without.
        watchdog: When to hold.
        overrides: Keys of the file whose values lie beyond what is usual, on purpose.
    """

    name: str
    base_frame: str
    tool_frame: str
    rate_hz: float
    limits: AxisLimits
    home: np.ndarray
    chain: Chain
    workspace: Workspace
    gripper: AxisLimits | None
    watchdog: WatchdogLimits
    overrides: tuple[str, ...] = ()

    @property
    def grippers(self) -> tuple[AxisLimits, ...]:
        """The limits of each gripper: one, or none."""
        return () if self.gripper is None else (self.gripper,)

    def gate(self) -> SafetyGate:
        """A gate for the arm's joints."""
        return SafetyGate(self.limits, self.rate_hz, self.workspace.inside)

    def gripper_gate(self) -> SafetyGate | None:
        """A gate for the gripper, if there is one."""
        return None if self.gripper is None else SafetyGate(self.gripper, self.rate_hz)


def robot_path(robot: str) -> Path:
    """The file of a robot: `fr3` is one that ships, `my/arm.yaml` is yours.

    Raises:
        UserError: There is no such file; names the shipped ones.
    """
    shipped = {path.stem: path for path in ROBOTS.glob("*.yaml")}
    path = shipped.get(robot, Path(robot))
    if not path.is_file():
        raise UserError(f"robot {robot}: no such file, and none that ships.{suggest(robot, shipped)}")
    return path


def load_robot(robot: str) -> Robot:
    """Read and check an arm's YAML.

    Args:
        robot: A shipped name or a path.

    Returns:
        The arm.

    Raises:
        UserError: One line with the file, the key and what to do.
    """
    file = read_yaml(robot_path(robot))
    if file.has("arms"):
        raise file.wrong("arms", "two arms, where a robot of one is needed: name one, such as fr3")
    found = read_arm(file, file.text("name"), shared_by_arms(file))
    file.done()
    file.overrides_done(ros=False)
    return found


@dataclass(frozen=True)
class Shared:
    """What a file says of all its arms: rates, what commands may use of the maker's figures, and when to hold."""

    file: Section
    rate_hz: float
    base_frame: str
    margin: float
    shares: np.ndarray
    watchdog: WatchdogLimits


def shared_by_arms(file: Section) -> Shared:
    """Read the keys that stand once in a file."""
    file.has("ros")  # the bridge's own section
    rate_hz = file.number("rate_hz", "set points per second", _RATE, positive=True)
    scaling = file.section("scaling")
    margin = file.number("position_margin", "rad kept from each end of a joint's range", _MARGIN)
    if margin < 0:
        raise file.wrong("position_margin", f"{margin:g} is negative: commands would leave a joint's range")
    shares = np.array([scaling.number(key, "a share in (0, 1]", _SHARE, positive=True) for key in _FIGURES])
    for key, share in zip(_FIGURES, shares, strict=True):
        if share > 1:
            raise scaling.wrong(key, f"{share:g} is more than the whole of what the joint can do: at most 1")
    scaling.done()
    return Shared(file, rate_hz, file.text("base_frame"), margin, shares, _watchdog(file.section("watchdog")))


def read_arm(section: Section, name: str, shared: Shared, base: Origin | None = None) -> Robot:
    """Read and check the keys of one arm.

    Args:
        section: The file itself, or the arm's part of a file of two.
        name: The arm's.
        shared: What the file says of all its arms.
        base: Where it stands in the base frame; None: in its origin.
    """
    limits, origins, axes = _joints(section.section("joints"), shared)
    tool = section.section("tool")
    chain = Chain(origins, axes, read_origin(tool, _TOOL), base)
    tool.done()
    steps = (*origins, chain.tool) if base is None else (base, *origins, chain.tool)
    box, reach = section.section("workspace"), sum(float(np.linalg.norm(one.xyz)) for one in steps)
    sides = (
        np.array(box.numbers(key, 3, "m, base frame: the arm's reach", (-reach, reach))) for key in ("lower", "upper")
    )
    workspace = Workspace(chain, *sides)
    box.done()
    if (workspace.lower >= workspace.upper).any():
        raise box.wrong("lower", "must lie below upper in x, y and z")
    found = Robot(
        name=name,
        base_frame=shared.base_frame,
        tool_frame=section.text("tool_frame"),
        rate_hz=shared.rate_hz,
        limits=limits,
        home=np.array(section.numbers("home", len(limits.names), "rad, one per joint", _ANGLE)),
        chain=chain,
        workspace=workspace,
        gripper=_gripper(section.section("gripper")) if section.has("gripper") else None,
        watchdog=shared.watchdog,
        overrides=tuple(section.overrides),
    )
    _check(found, section, shared.file)
    return found


def _check(robot: Robot, section: Section, file: Section) -> None:
    """What no single key shows: the home pose is allowed, and a stop is of a length that can be planned each tick."""
    motion = Motion(robot.limits, 1 / robot.rate_hz, robot.workspace.inside)
    if motion.allows_rest(robot.home[None]).any():
        at = ", ".join(f"{x:.3f}" for x in robot.chain.position(robot.home))
        raise section.wrong("home", f"outside the joints' ranges or the workspace (tool at {at} m); correct either")
    limits = robot.limits
    stop_s = float(np.max(limits.velocity / limits.acceleration + limits.acceleration / limits.jerk))
    if stop_s * robot.rate_hz > _MOST_STOP_TICKS:
        problem = (
            f"a stop takes {stop_s:.2f} s, more than {_MOST_STOP_TICKS} ticks; lower rate_hz or raise acceleration"
        )
        raise file.wrong("rate_hz", problem)


def _joints(joints: Section, shared: Shared) -> tuple[AxisLimits, list[Origin], list[tuple[float, ...]]]:
    margin = shared.margin
    ranges, figures, origins, axes = [], [], [], []
    for name in joints.keys:
        joint = joints.section(name)
        lower, upper = joint.numbers("position", 2, "rad, [lower, upper]", _ANGLE)
        if lower + margin >= upper - margin:
            raise joint.wrong("position", f"[{lower}, {upper}] is empty after position_margin {margin}")
        ranges.append((lower + margin, upper - margin))
        figures.append(_figures(joint, "rad", _FIGURES) * shared.shares)
        origins.append(read_origin(joint, _LENGTH))
        axis = joint.numbers("axis", 3, "a direction in the joint's frame", _DIRECTION)
        if not any(axis):
            raise joint.wrong("axis", "[0, 0, 0] is no direction; URDF's default is [1, 0, 0]")
        axes.append(axis)
        joint.done()
    limits = AxisLimits(tuple(joints.keys), *np.array(ranges).T, *np.array(figures).T)
    return limits, origins, axes


def _figures(section: Section, unit: str, bands: Mapping[str, Band]) -> np.ndarray:
    units = {"velocity": f"{unit}/s", "acceleration": f"{unit}/s^2", "jerk": f"{unit}/s^3"}
    found = {key: section.number(key, of, bands[key], positive=True) for key, of in units.items()}
    for (key, band), slower in zip(_RAMPS.items(), ("velocity", "acceleration"), strict=True):
        section.plausible(key, [found[slower] / found[key]], band, f"s to full {slower}")
    return np.array(list(found.values()))


def read_origin(section: Section, band: Band) -> Origin:
    """A frame in its parent, of lengths within a band (m)."""
    xyz, rpy = section.numbers("xyz", 3, "m", band), section.numbers("rpy", 3, "rad", _TURN)
    return Origin((xyz[0], xyz[1], xyz[2]), (rpy[0], rpy[1], rpy[2]))


def _gripper(section: Section) -> AxisLimits:
    name, (lower, upper) = section.text("joint"), section.numbers("position", 2, "m, [closed, open]", _WIDTH)
    if lower >= upper:
        raise section.wrong("position", f"[{lower}, {upper}]: closed must be smaller than open")
    velocity, acceleration, jerk = _figures(section, "m", _GRIPPER_FIGURES)[:, None]
    section.done()
    return AxisLimits((name,), np.array([lower]), np.array([upper]), velocity, acceleration, jerk)


def _watchdog(section: Section) -> WatchdogLimits:
    found = {key: section.number(key, unit, band, positive=True) for key, (unit, band) in _WATCHDOG.items()}
    limits = WatchdogLimits(**found)
    section.done()
    return limits
