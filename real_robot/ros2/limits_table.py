"""All limits that hold, in one table that a person confirms before the arm is armed."""

from __future__ import annotations

from dataclasses import asdict

from embodied_rl.real_robot.core.limits import AxisLimits
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.ros2.config import RosConfig


def limits_table(robot: Robot | TwoArmRobot, config: RosConfig) -> str:
    """One line an axis, a wall and a watch, as they hold: after margin and scaling.

    Args:
        robot: The arm, or two.
        config: Its topics and gripper.
    """
    lines = [f"{robot.rate_hz:g} set points a second"]
    lines += _axes(robot.limits, "rad")
    for arm, owner in (
        [(one, f"{one.name} ") for one in robot.arms] if isinstance(robot, TwoArmRobot) else [(robot, "")]
    ):
        for axis, low, high in zip("xyz", arm.workspace.lower, arm.workspace.upper, strict=True):
            lines.append(f"{owner}tool {axis} {low:g} to {high:g} m in {robot.base_frame}")
    if isinstance(robot, TwoArmRobot):
        lines.append(f"the arms keep {robot.distance:g} m between them; what they hold does not count")
    for limits in robot.grippers:
        lines += _axes(limits, "m")
    for gripper in config.grippers:
        effort = "" if gripper.effort is None else f", {gripper.effort:g} N"
        lines.append(f"gripper is sent {gripper.scale:g} a metre of width{effort}")
    for name, value in asdict(robot.watchdog).items():
        lines.append(
            f"{name.removesuffix('_s').replace('_', ' ')} at most {value:g} {'s' if name.endswith('_s') else 'rad'}"
        )
    lines.append("the emergency stop has a button" if config.has_button else "THERE IS NO BUTTON for an emergency stop")
    lines += [f"BEYOND WHAT IS USUAL, as the file says: {key}" for key in robot.overrides]
    return "\n".join(lines)


def _axes(limits: AxisLimits, unit: str) -> list[str]:
    rows = zip(limits.names, limits.lower, limits.upper, limits.velocity, limits.acceleration, limits.jerk, strict=True)
    return [
        f"{name} {low:.3f} to {high:.3f} {unit}; {speed:.3g} {unit}/s, {ramp:.3g} {unit}/s², {jerk:.3g} {unit}/s³"
        for name, low, high, speed, ramp, jerk in rows
    ]
