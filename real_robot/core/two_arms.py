"""Two arms that work together: their file, their limits, and the gate that keeps both and the distance between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from embodied_rl.real_robot.core.cartesian import quaternion_xyzw
from embodied_rl.real_robot.core.clearance import Capsule, Clearance
from embodied_rl.real_robot.core.gate import GateOutcome, Reason, SafetyGate
from embodied_rl.real_robot.core.limits import AxisLimits
from embodied_rl.real_robot.core.motion import MARGIN
from embodied_rl.real_robot.core.robot import Robot, load_robot, read_arm, read_origin, robot_path, shared_by_arms
from embodied_rl.real_robot.core.watchdog import WatchdogLimits
from embodied_rl.real_robot.core.yaml_reader import Section, read_yaml

_DISTANCE, _RADIUS, _BASE, _END = (0.005, 1.0), (0.005, 0.5), (-5.0, 5.0), (-2.0, 2.0)
"""What is plausible, see `robot`: m."""
POSITION, WORKSPACE, DISTANCE = "position", "workspace", "distance"
"""Kinds of reasons for which both arms hold."""


@dataclass(frozen=True)
class TwoArmRobot:
    """Two arms under one gate: their axes stand one arm's after the other's.

    Attributes:
        name: For people.
        arms: Both; poses and workspaces are in the one `base_frame`.
        clearance: How near they come to each other.
        distance: The least that they keep between them, m.

    Example:
        >>> robot = load_two_arms("aloha")
        >>> runtime = ArmRuntime(robot, cameras=["top"])
    """

    name: str
    arms: tuple[Robot, Robot]
    clearance: Clearance
    distance: float

    @cached_property
    def limits(self) -> AxisLimits:
        """What commands may use of both arms' joints."""
        left, right = (arm.limits for arm in self.arms)
        figures = ("lower", "upper", "velocity", "acceleration", "jerk")
        joined = (np.concatenate([getattr(left, name), getattr(right, name)]) for name in figures)
        return AxisLimits((*left.names, *right.names), *joined)

    @property
    def home(self) -> np.ndarray:
        """Joint angles [n] from which episodes start, rad."""
        return np.concatenate([arm.home for arm in self.arms])

    @property
    def rate_hz(self) -> float:
        """Set points per second."""
        return self.arms[0].rate_hz

    @property
    def base_frame(self) -> str:
        """The frame in which poses, workspaces and bases are given."""
        return self.arms[0].base_frame

    @property
    def grippers(self) -> tuple[AxisLimits, ...]:
        """The limits of both grippers."""
        return tuple(one for arm in self.arms for one in arm.grippers)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Keys of the file whose values lie beyond what is usual, on purpose."""
        return self.arms[0].overrides

    @property
    def watchdog(self) -> WatchdogLimits:
        """When to hold both."""
        return self.arms[0].watchdog

    def gate(self) -> TwoArmGate:
        """A gate for both arms' joints."""
        return TwoArmGate(self)

    def of_each(self, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each arm's part of [..., n]."""
        split = len(self.arms[0].limits.names)
        return angles[..., :split], angles[..., split:]

    def tools(self, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Each tool's position [2, 3], m, and quaternion x, y, z, w [2, 4], at joint angles [n], rad."""
        poses = [arm.chain.pose(own) for arm, own in zip(self.arms, self.of_each(angles), strict=True)]
        return np.stack([one for one, _ in poses]), np.stack([quaternion_xyzw(turn) for _, turn in poses])

    def out_of_place(self, path: np.ndarray) -> tuple[Reason, ...]:
        """Which arm leaves its workspace on a path, and whether the arms come too near to each other.

        Args:
            path: Poses in order [T, n], rad; on the way from each to the next, too, the distance is kept.
        """
        found = []
        for arm, own in zip(self.arms, self.of_each(path), strict=True):
            outside = ~arm.workspace.inside(own)
            if outside.any():
                at = ", ".join(f"{x:.3f}" for x in arm.chain.position(own[outside.argmax()]))
                found.append(Reason(WORKSPACE, f"{arm.name}: {arm.tool_frame} at {at} m"))
        kept = self.clearance.between(path)
        if kept.min() < self.distance + MARGIN:
            left, right, _ = self.clearance.nearest(path[kept.argmin()])
            found.append(Reason(DISTANCE, f"{left} and {right} {kept.min():.3f} m apart, at least {self.distance:g}"))
        return tuple(found)


class TwoArmGate(SafetyGate):
    """The gate of two arms: one command for all their axes, and one answer.

    What is asked too fast is slowed, as for one arm. Where a command asks either arm for a position beyond a joint's
    range, or leads to where the stop would take it out of its workspace or the arms too near to each other, it is void,
    and both arms brake. What they brake on is the stop that was checked the tick before.

    Args:
        robot: Both arms.
    """

    def __init__(self, robot: TwoArmRobot) -> None:
        super().__init__(robot.limits, robot.rate_hz)
        self._robot = robot
        self._labels = tuple(f"{arm.name} {joint}" for arm in robot.arms for joint in arm.limits.names)

    def brake_from(self, positions: np.ndarray, velocities: np.ndarray) -> bool:
        """As of one arm; where the stop from there would leave its place, the arms are taken to rest."""
        fits = super().brake_from(positions, velocities)
        if self._robot.out_of_place(self._ahead()):
            self._state = self._motion.rest(positions[None])
        return fits

    def _judge(self, positions: np.ndarray, velocities: np.ndarray | None) -> tuple[GateOutcome, tuple[Reason, ...]]:
        before, tick = self._running(), self._tick
        outcome, reasons = super()._judge(positions, velocities)
        path = np.concatenate([before.position, self._ahead()])
        holds = *(one for one in reasons if one.kind == POSITION), *self._robot.out_of_place(path)
        if not holds:
            return outcome, reasons
        self._state, self._tick = before, tick
        self._brake(1)
        return GateOutcome.HOLD, holds

    def _rest_broken(self, positions: np.ndarray) -> tuple[Reason, ...]:
        broken = super()._rest_broken(positions)
        return broken or self._robot.out_of_place(positions[None])

    def _ahead(self) -> np.ndarray:
        """The present set point and the stop from there [T, n]."""
        state = self._running()
        return np.concatenate([state.position, self._motion.stop_path(state)[:, 0]])


def load_arms(robot: str) -> Robot | TwoArmRobot:
    """Read and check the YAML of a robot of one arm or of two; see `load_robot` and `load_two_arms`."""
    return load_two_arms(robot) if read_yaml(robot_path(robot)).has("arms") else load_robot(robot)


def load_two_arms(robot: str) -> TwoArmRobot:
    """Read and check the YAML of a robot of two arms.

    Args:
        robot: A shipped name, such as `aloha`, or a path.

    Raises:
        UserError: One line with the file, the key and what to do.
    """
    file = read_yaml(robot_path(robot))
    if not file.has("arms"):
        raise file.wrong("arms", "missing: a robot of two arms is needed, such as aloha")
    name, shared, sections = file.text("name"), shared_by_arms(file), file.section("arms")
    if len(sections.keys) != 2:
        raise file.wrong("arms", f"{', '.join(sections.keys):.80}: give two arms")
    arms, hulls = list[Robot](), list[tuple[Capsule, ...]]()
    for side in sections.keys:
        section = sections.section(side)
        base = section.section("base")
        if not section.has("gripper"):
            raise section.wrong("gripper", "missing: both of two arms need one")
        arms.append(read_arm(section, side, shared, read_origin(base, _BASE)))
        hulls.append(_capsules(section.section("capsules"), arms[-1].limits.names))
        for part in (base, section):
            part.done()
    if twice := sorted(set(arms[0].limits.names) & set(arms[1].limits.names)):
        raise file.wrong("arms", f"both have a joint {twice[0]:.80}: give each joint one name of its own")
    names = (arms[0].name, arms[1].name)
    clearance = Clearance((arms[0].chain, arms[1].chain), (hulls[0], hulls[1]), names)
    distance = file.number("distance", "m between the arms", _DISTANCE, positive=True)
    found = TwoArmRobot(name, (arms[0], arms[1]), clearance, distance)
    file.done()
    file.overrides_done(ros=False)
    if broken := found.out_of_place(found.home[None]):
        raise file.wrong("distance", f"not kept at home: {broken[0].detail}; correct home, base or distance")
    return found


def _capsules(section: Section, joints: tuple[str, ...]) -> tuple[Capsule, ...]:
    found = []
    for name in section.keys:
        one = section.section(name)
        joint = one.text("joint")
        if joint not in ("base", *joints):
            raise one.wrong("joint", f"'{joint:.80}' is none of base, {', '.join(joints)}")
        start, end = (one.numbers(key, 3, "m, in the joint's frame", _END) for key in ("start", "end"))
        radius = one.number("radius", "m", _RADIUS, positive=True)
        finger = one.flag("finger") if one.has("finger") else False
        number = -1 if joint == "base" else joints.index(joint)
        found.append(Capsule(name, number, (start[0], start[1], start[2]), (end[0], end[1], end[2]), radius, finger))
        one.done()
    uncovered = [joint for number, joint in enumerate(joints) if number not in {one.joint for one in found}]
    if uncovered:
        raise section.wrong(uncovered[0], "no capsule is on it: each joint's link needs one")
    return tuple(found)
